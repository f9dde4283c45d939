"""A server whose streams another process writes answers as one that writes them itself, and loses nothing with it."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from cohort.service.streams import written_response
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.running_server import RunningServer, running

PROMPT = "the quick brown fox jumps over"
Starting = Callable[[], RunningServer]


def settings(model: Path, *, writes_apart: bool) -> ServedSettings:
    return ServedSettings(
        model=str(model),
        adapters=(str(model.parent / "adapters"),),
        names=("base",),
        gpus=0,
        chat_template="chatml",
        pool=AdapterPoolSettings(max_loras=2, max_lora_rank=16),
        writes_apart=writes_apart,
    )


@pytest.fixture(scope="module")
def apart(model: Path) -> Iterator[RunningServer]:
    limits = ServerLimits(max_waiting=8, max_prompts=16)
    with running(settings(model, writes_apart=True), ServerSettings(limits=limits)) as found:
        yield found


@pytest.fixture(scope="module")
def written(apart: RunningServer) -> Iterator[list[object]]:
    """Streams that the other process has written, so that a test cannot pass without it."""
    seen: list[object] = []
    begin = written_response.WrittenResponse._lend

    async def noted(self: Any) -> None:
        seen.append(self)
        await begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written_response.WrittenResponse, "_lend", noted)
        yield seen


def masked(text: str) -> str:
    return re.sub(r'"id": "[^"]+", "created": \d+', "", text)


def joined(text: str, *, is_chat: bool) -> dict[int, tuple[str, str, list[Any]]]:
    """Return each choice's text, finish and logarithms: how tokens are divided into events is a matter of time."""
    found: dict[int, tuple[str, str, list[Any]]] = {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            shown, finish, logs = found.get(choice["index"], ("", "", []))
            shown += (choice["delta"].get("content") or "") if is_chat else choice["text"]
            if own := choice.get("logprobs"):
                logs = [*logs, own["content"] if is_chat else own["token_logprobs"]]
            found[choice["index"]] = (shown, choice["finish_reason"] or finish, logs)
    return found


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"n": 3, "seed": 5, "temperature": 1.0},
    "stopped": {"stop": ["e"]},
    "logprobs": {"logprobs": 2},
    "usage": {"stream_options": {"include_usage": True}},
    "adapter": {"model": "a1"},
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("is_chat", [False, True])
def test_a_stream_says_what_it_says_without_the_other_process(
    server: RunningServer, apart: RunningServer, written: list[object], name: str, is_chat: bool
) -> None:
    more = dict(ASKED[name])
    if is_chat and "logprobs" in more:
        more = {"logprobs": True, "top_logprobs": 2}
    body = {"model": "base", "max_tokens": 12, "temperature": 0, "stream": True, **more}
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if is_chat else {"prompt": PROMPT}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    written.clear()
    here = server.post(path, body)
    assert not written
    there = apart.post(path, body)
    assert len(written) == 1
    assert (there.status_code, here.status_code) == (200, 200)
    assert joined(there.text, is_chat=is_chat) == joined(here.text, is_chat=is_chat)
    assert there.text.endswith("data: [DONE]\n\n")
    kept = {name: value for name, value in there.headers.items() if name != "date"}
    assert kept == {name: value for name, value in here.headers.items() if name != "date"}
    usages = [re.findall(r'"usage": \{[^}]*\}', each.text) for each in (here, there)]
    assert usages[0] == usages[1]
    first = [masked(each.text.splitlines()[0]) for each in (here, there)]
    if is_chat:
        assert first[0] == first[1]
    apart.assert_nothing_is_held()


def test_many_streams_at_once_are_not_mixed_up(apart: RunningServer, written: list[object]) -> None:
    def ask(place: int) -> tuple[int, str]:
        body = {"model": f"a{place % 3}", "prompt": f"{place}+1=", "max_tokens": 20, "temperature": 0}
        whole = apart.post("/v1/completions", body).json()["choices"][0]["text"]
        streamed = apart.post("/v1/completions", {**body, "stream": True})
        return int(joined(streamed.text, is_chat=False)[0][0] == whole), whole

    written.clear()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(32)))
    assert all(is_same for is_same, _ in found)
    assert len({whole for _, whole in found}) > 8, "equal answers would hide a mix-up"
    assert len(written) == 32
    apart.assert_nothing_is_held()


def test_a_connection_is_used_again_behind_a_stream(apart: RunningServer, written: list[object]) -> None:
    del written
    host, port = apart.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    sockets = set()
    for stream in (True, False, True):
        body = {"model": "base", "prompt": "1", "max_tokens": 3, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.read()
        assert connection.sock is not None, "the server closed the connection"
        sockets.add(connection.sock.getsockname())
    assert len(sockets) == 1
    connection.close()


def test_a_client_that_asks_for_it_gets_its_connection_closed(apart: RunningServer) -> None:
    body = {"model": "base", "prompt": "1", "max_tokens": 3, "stream": True}
    headers = {"Connection": "close"}
    response = httpx.post(f"{apart.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert response.text.endswith("data: [DONE]\n\n")
    assert response.headers["connection"] == "close"


def test_an_old_clients_stream_is_written_here(apart: RunningServer, written: list[object]) -> None:
    host, port = apart.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "base", "prompt": "1", "max_tokens": 3, "stream": True}).encode()
    written.clear()
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        data = b""
        while piece := client.recv(1 << 16):
            data += piece
    assert b"data: [DONE]\n\n" in data
    assert not written


def test_a_client_that_leaves_ends_its_sequences_and_no_process_keeps_its_connection(apart: RunningServer) -> None:
    writer = apart.opened.thread.writer
    assert writer is not None
    body = {"model": "a0", "prompt": "1", "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 4}
    # the writer reports its end after it has closed the connection
    assert apart.post("/v1/completions", {**body, "max_tokens": 2}).status_code == 200
    num_open = len(os.listdir(f"/proc/{writer.process_id}/fd"))
    for _ in range(3):
        with httpx.stream("POST", f"{apart.url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_raw())
    apart.assert_nothing_is_held()
    until = time.monotonic() + 10.0
    while writer._streams or len(os.listdir(f"/proc/{writer.process_id}/fd")) > num_open:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_too_many_requests_are_refused_before_a_stream_begins(apart: RunningServer) -> None:
    body = {"model": "base", "prompt": "1", "max_tokens": 2, "stream": True, "n": 9}
    response = apart.post("/v1/completions", body)
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert not apart.opened.thread.writer._streams  # type: ignore[union-attr]


def test_times_of_tokens_are_counted(apart: RunningServer) -> None:
    def count(name: str) -> float:
        lines = httpx.get(f"{apart.url}/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}_count"))

    names = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
    body = {"model": "base", "prompt": "1", "max_tokens": 7, "ignore_eos": True, "stream": True}
    # a client that has its whole answer finds its times counted
    assert apart.post("/v1/completions", body).status_code == 200
    before = [count(name) for name in names]
    assert apart.post("/v1/completions", body).status_code == 200
    assert [count(name) - old for name, old in zip(names, before, strict=True)] == [1, 6, 1]


def test_where_the_other_process_ends_its_streams_break_and_later_ones_are_written_here(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"model": "base", "prompt": "1", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with caplog.at_level(logging.ERROR), running(settings(model, writes_apart=True)) as server:
        writer = server.opened.thread.writer
        assert writer is not None
        broken: list[BaseException] = []

        def read() -> None:
            try:
                httpx.post(f"{server.url}/v1/completions", json={**long, "n": 8}, timeout=60)
            except httpx.HTTPError as error:
                broken.append(error)

        # paused, so that the stream cannot be over before its process is
        os.kill(writer.process_id, signal.SIGSTOP)
        client = threading.Thread(target=read)
        client.start()
        until = time.monotonic() + 30.0
        while not writer._streams:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(writer.process_id, signal.SIGKILL)
        client.join(60)
        assert len(broken) == 1, "half an answer must not look like a whole one"
        assert server.post("/v1/completions", {**long, "max_tokens": 5}).text.endswith("data: [DONE]\n\n")
        server.assert_nothing_is_held()
    assert "the process that writes streams has ended" in caplog.text


def test_a_server_that_ends_has_no_process_left(model: Path) -> None:
    with running(settings(model, writes_apart=True)) as server:
        writer = server.opened.thread.writer
        assert writer is not None
    assert writer._process.returncode == 0


def test_a_client_that_left_before_its_connection_was_lent_is_forgotten_there() -> None:
    told: list[str] = []

    class Writer:
        """Keeps what it is asked for."""

        def attach(self, stream: Any, descriptor: int) -> None:
            raise OSError("the connection is closed")

        def forget(self, stream: Any) -> None:
            told.append("forgotten while it was open" if not stream.ended else "too late")

    class Stream:
        """Ends on request."""

        ended: Any = False

        def end(self, *, is_whole: bool) -> None:
            self.ended = True

    class Connection:
        """Has nothing left to write."""

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, name: str) -> Any:
            return self

        def fileno(self) -> int:
            return -1

    writer, stream, connection = cast(Any, Writer()), cast(Any, Stream()), cast(Any, Connection())
    response = written_response.WrittenResponse(
        stream, writer=writer, connection=connection, headers={}, on_end=lambda: None
    )
    asyncio.run(response._lend())
    assert told == ["forgotten while it was open"]
    assert stream.ended
