"""The playground over a real server of a tiny model: answers as they come, the keys it needs, and what it says else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cohort.service.dashboard.model_server import ModelServer
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.settings import ServedSettings, ServerSettings
from tests.service.dashboard.conftest import client_of
from tests.service.running_server import RunningServer, running, write_served


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    served = ServedSettings(
        model=str(write_served(folder)), adapters=(str(folder / "adapters"),), names=("base",), gpus=0
    )
    with running(served, ServerSettings(api_keys=("inner",))) as server:
        yield server


def _client(tmp_path: Path, models: ModelServer | None) -> tuple[TestClient, dict[str, str]]:
    client = client_of(DashboardSettings(root=tmp_path, models=models))
    return client, {"x-csrf-token": client.get("/api/session").json()["csrf"]}


def test_models_answer_side_by_side(models: RunningServer, tmp_path: Path) -> None:
    client, headers = _client(tmp_path, ModelServer(f"{models.url}/v1", api_key="inner"))
    listed = client.get("/api/playground").json()
    assert listed == {"url": models.url, "models": ["base", "a0", "a1", "a2"]}
    answers = {}
    for name in ("base", "a1"):
        body = {"model": name, "prompt": "1+2=", "max_tokens": 40, "temperature": 0}
        answer = client.post("/api/playground", json=body, headers=headers)
        pieces = [json.loads(line) for line in answer.text.splitlines()]
        assert len(pieces) > 1, "it comes in pieces"
        answers[name] = "".join(piece["text"] for piece in pieces)
        exact = models.post("/v1/completions", body, headers={"authorization": "Bearer inner"}).json()
        assert answers[name] == exact["choices"][0]["text"]
    assert answers["base"] != answers["a1"]
    models.assert_nothing_is_held()


def test_what_goes_wrong_is_said(models: RunningServer, tmp_path: Path) -> None:
    body = {"model": "base", "prompt": "1+2="}

    def said(server: ModelServer | None, asked: dict[str, str]) -> str:
        client, headers = _client(tmp_path, server)
        return client.post("/api/playground", json=asked, headers=headers).text

    assert "refuses (401)" in said(ModelServer(models.url), body)
    assert "refuses (404)" in said(ModelServer(models.url, api_key="inner"), {**body, "model": "gone"})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = ModelServer(f"http://127.0.0.1:{port}")
    assert "does not answer" in said(gone, body)
    assert "no server of models" in said(None, body)
    client, _ = _client(tmp_path, gone)
    assert client.get("/api/playground").status_code == 502
    client, _ = _client(tmp_path, None)
    assert client.get("/api/playground").json() == {"url": "", "models": []}
    assert client.post("/api/playground", json=body).status_code == 403, "asking costs compute, so it needs the token"


@pytest.mark.parametrize("piece", ['{"choices": {"a": 1}}', '{"choices": 1}', '{"error": "no"}', "[]", "1", "{"])
def test_a_piece_of_another_form_ends_the_answer(tmp_path: Path, piece: str) -> None:
    content = f"data: {piece}\n\n".encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content)

    def answer(listening: socket.socket) -> None:
        found, _ = listening.accept()
        with found:
            found.recv(65536)
            found.sendall(head + content)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=answer, args=(listening,))
        answering.start()
        client, headers = _client(tmp_path, ModelServer(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        said = client.post("/api/playground", json={"prompt": "1+2="}, headers=headers).text
        answering.join()
    assert "stopped answering" in said


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "file:///etc/passwd", "http://", ""])
def test_only_addresses_of_http_are_asked(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        ModelServer(url)
