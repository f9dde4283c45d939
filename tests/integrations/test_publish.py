"""What a server's answers mean for a sweep that is to tell it of its best adapter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.integrations.publish import KEY_VARIABLE, AdapterServer, PublishError


class Server(ThreadingHTTPServer):
    """Answers every request with ``status`` and keeps what it was asked."""

    status = 200
    body = b"{}"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def test_a_server_is_asked_for_a_path_that_is_not_there_yet(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    # 400: it would read the path, which is all that can be known before the adapter exists
    server.status = 400
    AdapterServer.at(f"{server.url}/v1/").check("mine", tmp_path / "best", base_sha256="ab" * 32)
    ((path, key, body),) = server.asked
    assert (path, key) == ("/v1/load_lora_adapter", "Bearer secret")
    assert (body["lora_name"], body["load_inplace"], body["base_model_sha256"]) == ("mine", True, "ab" * 32)
    assert not Path(body["lora_path"]).exists()


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, f"Set {KEY_VARIABLE}"),
        (403, "--allow-runtime-lora --lora-root DIR"),
        (404, "`cohort serve --allow-runtime-lora`"),
        (409, "--publish-as"),
        (412, "the task's base model"),
        (500, "server's log"),
        (200, "server's log"),
    ],
)
def test_a_server_that_will_not_take_it_is_refused_before_the_sweep(
    server: Server, tmp_path: Path, status: int, hint: str
) -> None:
    server.status, server.body = status, b'{"error": {"message": "not this one"}}'
    with pytest.raises(InputError) as caught:
        AdapterServer(url=server.url).check("mine", tmp_path, base_sha256=None)
    (problem,) = caught.value.problems
    assert hint in problem.hint
    assert status == 200 or "not this one" in problem.found


def test_a_server_that_does_not_know_the_hash_is_asked_without_it(server: Server, tmp_path: Path) -> None:
    server.status, server.body = 400, b'{"error": {"message": "base_model_sha256: found an unknown key"}}'
    AdapterServer(url=server.url).check("mine", tmp_path, base_sha256="ab")
    assert ["base_model_sha256" in body for _, _, body in server.asked] == [True, False]


def test_no_server_at_all(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:1", "no address"):
        with pytest.raises(InputError, match=r"no answer.*Start the server"):
            AdapterServer(url=url).check("mine", tmp_path, base_sha256=None)


def test_the_adapter_is_loaded_and_a_refusal_says_how_to_try_again(server: Server, tmp_path: Path) -> None:
    AdapterServer(url=server.url).load("mine", tmp_path)
    assert server.asked[0][1] is None
    assert server.asked[0][2]["lora_path"] == str(tmp_path.resolve())
    server.status, server.body = 507, b"plain words"
    with pytest.raises(PublishError, match=r"plain words; it is whole, and `curl -X POST"):
        AdapterServer(url=server.url).load("mine", tmp_path)
