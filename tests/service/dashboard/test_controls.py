"""What a person does to a run over HTTP: said before, handed to the run, and answered as the run answers."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import TaskFacts
from cohort.runs.requests.trial_requests import Answer, RequestSpool
from cohort.service.dashboard.settings import DashboardSettings
from cohort.tasks.loading import task_from_mapping
from tests.runs.answered_run import answering
from tests.runs.small_run import write_small_run
from tests.service.dashboard.conftest import client_of

HOLDING = """
import signal, sys, time
from pathlib import Path
from cohort.runs.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Trials 0 to 3 of a task: 0 is complete, 1 was stopped by a rule, 3 waits."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "model").mkdir()
    data = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl"},
        "search": {"space": {"learning_rate": [1e-5, 1e-2], "r": [8, 24]}},
    }
    task = task_from_mapping(data, base_directory=tmp_path)
    directory, store, _ = write_small_run(tmp_path / "runs" / "mine")
    store.set_facts(task=TaskFacts(document=task.model_dump(mode="json", by_alias=True)))
    store.close()
    # a run of plain hyperparameters: a list is none that can be searched
    parameters = json.dumps({"learning_rate": 1e-5, "r": 24, "lora_alpha": 48, "batch_size": 1})
    with closing(sqlite3.connect(directory.database)) as connection, connection:
        connection.execute("UPDATE trials SET parameters = ?", (parameters,))
    return directory


@pytest.fixture
def client(run: RunDirectory) -> TestClient:
    client = client_of(DashboardSettings(root=run.root.parent, can_control=True))
    client.headers["x-csrf-token"] = client.get("/api/session").json()["csrf"]
    client.params = client.params.merge({"run": "mine"})
    return client


@pytest.mark.parametrize(
    ("body", "does", "undo"),
    [
        ({"kind": "stop", "trial": 3}, "Trial 3 ends after its present step (0 of 4", "Resume trial 3"),
        ({"kind": "resume", "trial": 1}, "Trial 1 goes on from step 1 of 4", "Stop trial 1 again"),
        ({"kind": "keep", "trial": 3}, "No exit rule may stop trial 3", "a kept trial stays kept"),
        ({"kind": "clone", "trial": 0, "values": {"r": 8}}, "A copy of trial 0 with r 8", "Stop the new trial"),
        (
            {"kind": "clone", "trial": 0, "values": {"seed": 3}, "warm_start": True},
            "weights of the best checkpoint of trial 0",
            "Stop the new trial",
        ),
        ({"kind": "add", "values": {"r": 8, "learning_rate": 0.01}}, "A new trial with r 8", "Stop the new trial"),
    ],
)
def test_each_request_says_what_it_does_and_does_nothing(
    client: TestClient, run: RunDirectory, body: dict[str, Any], does: str, undo: str
) -> None:
    told = client.post("/api/run/preview", json=body).json()
    assert does in told["does"]
    assert undo in told["undo"]
    assert f"cohort resume {run.root}" in told["when"]
    with run.lock():
        assert "between two steps" in client.post("/api/run/preview", json=body).json()["when"]
    assert not run.requests.exists()


def test_what_is_asked_reaches_the_run_and_its_answer_the_page(client: TestClient, run: RunDirectory) -> None:
    with answering(run, Answer(text="trial 3 is stopped", trial_id=3)) as asked:
        told = client.post("/api/run/ask", json={"kind": "stop", "trial": 3}).json()
    assert told == {"text": "trial 3 is stopped", "trial": 3, "is_taken_up": True}
    (request,) = asked
    assert (request.kind, request.trial_id) == ("stop", 3)
    assert request.who.endswith("from the dashboard"), "the record names who it was"


def test_what_the_run_refuses_is_refused_in_its_words(client: TestClient) -> None:
    for body, words in (
        ({"kind": "stop", "trial": 0}, "completed"),
        ({"kind": "stop", "trial": 17}, "0 to 3"),
        ({"kind": "clone", "trial": 0, "values": {"r": -1}}, "--r"),
        ({"kind": "clone", "trial": 0, "values": {"r": "<b>"}}, "--r"),
        ({"kind": "clone", "trial": 0, "values": {"num_gpus": 2}}, "same for all trials"),
    ):
        for route in ("preview", "ask"):
            answer = client.post(f"/api/run/{route}", json=body)
            assert answer.status_code == 400
            assert words in answer.json()["error"]


def test_a_run_that_does_not_train_takes_it_up_later(client: TestClient, run: RunDirectory) -> None:
    told = client.post("/api/run/ask", json={"kind": "keep", "trial": 3}).json()
    assert not told["is_taken_up"]
    assert f"cohort resume {run.root}" in told["text"]
    assert len(RequestSpool(run.requests).waiting()) == 1


def test_stopping_the_run_ends_its_process_as_ctrl_c_does(client: TestClient, run: RunDirectory) -> None:
    command = [sys.executable, "-c", HOLDING, str(run.root / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        told = client.post("/api/run/preview", json={"kind": "stop-run"}).json()
        assert f"Process {process.pid} saves" in told["does"]
        assert process.poll() is None, "nothing is done before it is confirmed"
        assert "cohort resume" in client.post("/api/run/ask", json={"kind": "stop-run"}).json()["text"]
        assert process.wait(20) == -15
    assert client.post("/api/run/ask", json={"kind": "stop-run"}).status_code == 409
