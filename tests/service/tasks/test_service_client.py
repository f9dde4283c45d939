"""``cohort submit --server`` and its neighbours, and the client in Python, against a service."""

from __future__ import annotations

import http.server
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

import cohort as package
from cohort.api.service_client import ServiceRequestError
from tests.cli.command import cohort
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for

_TASK = """
dataset: {train: rows.jsonl, validation: 0.2}
model_name_or_path: base
training: {num_train_epochs: 1, batch_size: 4}
search: {space: {learning_rate: [1.0e-3, 1.0e-2], r: [4]}}
early_exit: none
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(chat_rows(24))
    (tmp_path / "task.yaml").write_text(_TASK)
    return tmp_path / "task.yaml"


def test_verbs_of_the_command(
    service: RunningService, task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COHORT_API_KEY", service.tenant("command"))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        return cohort(capsys, *arguments, "--server", service.url)

    code, planned, told = run("submit", task, "--plan")
    assert code == 0, told
    assert (code, planned.splitlines()[0]) == (0, "trials  2")
    # neither for a plan nor for what was refused is anything kept
    code, _, told = run("submit", task, "--base", "nothing")
    assert code == 1
    assert "nothing" in told
    assert service.client(os.environ["COHORT_API_KEY"]).files.list().data == []
    code, submitted, told = run("submit", task, "--suffix", "cli")
    task_id = submitted.strip()
    assert code == 0
    assert f"cohort status {task_id} --server" in told

    wait_for(lambda: json.loads(run("status", task_id, "--json")[1])["status"] == "succeeded")
    shown = run("status", task_id)[1]
    assert "ft:base:command:cli:" in shown
    assert "successfully completed" in shown
    trials = run("trials", task_id)[1].splitlines()
    assert trials[0].split()[:2] == ["trial", "status"]
    assert len(trials) == 4
    code, _, refused = run("trials", task_id, "stop", "0")
    assert code != 0
    assert "ended" in refused or "completed" in refused
    assert run("report", task_id)[1].strip() == f"{task_id}.html"
    assert "<html" in Path(f"{task_id}.html").read_text()
    assert run("export", task_id, "-o", "best")[1].strip() == "best"
    assert json.loads(Path("best/adapter_config.json").read_text())["r"] == 4
    code, _, refused = run("export", task_id, "-o", "merged", "--to", "merged")
    assert code == 2
    assert "--to peft" in refused


def test_the_client_in_python(service: RunningService, task: Path) -> None:
    client = package.ServiceClient(service.url, key=service.tenant("python"))
    first = client.submit(task, idempotency_key="one")
    done = client.wait(first, every_seconds=0.2)
    assert done["status"] == "succeeded", done["error"]
    assert done["best"]["r"] == 4
    assert [entry["id"] for entry in client.tasks()] == [first]
    assert {trial["trial"] for trial in client.trials(first)["trials"]} == {0, 1}
    assert client.events(first)[0]["message"] == "The job has successfully completed"
    with pytest.raises(ServiceRequestError, match="No such") as unknown:
        client.status("task-nothing")
    assert unknown.value.status == 404
    with pytest.raises(ServiceRequestError, match="COHORT_API_KEY"):
        package.ServiceClient(service.url, key="wrong").tasks()
    with pytest.raises(ServiceRequestError, match="does not answer"):
        package.ServiceClient("http://127.0.0.1:9", key="x").tasks()
    other = task.with_name("other.yaml")
    other.write_text(_TASK.replace("rows.jsonl", "rows.csv"))
    with pytest.raises(package.InputError, match="JSON lines"):
        client.submit(other)
    other.write_text(_TASK.replace("rows.jsonl", "raws.jsonl"))
    with pytest.raises(package.InputError, match=r"There is no such file: .*raws\.jsonl"):
        client.submit(other)


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "ftp://localhost:8000"])
def test_an_address_without_http_is_told_what_to_write(address: str) -> None:
    with pytest.raises(package.InputError, match=f"Write http://{address.removeprefix('ftp://')}"):
        package.ServiceClient(address, key="x")


class _CutOff(http.server.BaseHTTPRequestHandler):
    """Promises more than it sends, as a server that is killed does."""

    raw: ClassVar[bytes] = b""

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.raw:
            self.wfile.write(self.raw)
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"{" * 300)

    def log_message(self, *_: object) -> None:
        pass


def test_an_answer_that_is_cut_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("the one before")
    with http.server.HTTPServer(("127.0.0.1", 0), _CutOff) as server, ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever, poll_interval=0.01)
        try:
            client = package.ServiceClient(f"http://127.0.0.1:{server.server_port}", key="x")
            with pytest.raises(ServiceRequestError, match="broke off its answer after 300 of 1000 bytes; ask again"):
                client.report("task-1", target)
            with pytest.raises(ServiceRequestError, match=r"broke off its answer \(.*700 more expected\)\); ask again"):
                client.tasks()
            # a change may have been made
            with pytest.raises(ServiceRequestError, match="It may have done what was asked: look before"):
                client.cancel("task-1")
            for content in (b"HT", b"HTTP/1.1 200 OK\r\nContent-"):
                _CutOff.raw = content
                with pytest.raises(ServiceRequestError, match=r"does not answer|broke off its answer"):
                    client.tasks()
                with pytest.raises(ServiceRequestError, match=r"does not answer|broke off its answer"):
                    client.report("task-1", target)
        finally:
            server.shutdown()
    assert target.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [target]
