"""Malformed requests, clients that leave, adapters that come and go: the server lives, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.service.running_server import RunningServer, write_adapter

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, "", "x", [], {}, [[]], [None], {"a": 1}, "\u0000", "\ud83d\ude00", 2**70, [1, "a"],
    "9" * 400,
)  # fmt: skip
KEYS = (
    "model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stream",
    "stream_options", "logprobs", "top_logprobs", "stop_token_ids", "ignore_eos", "echo", "suffix", "tools",
    "lora_name", "lora_path", "load_inplace", "\u00fc",
)  # fmt: skip
PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models",
    "/v1/../etc", "/health", "/%00", "/v1/completions/",
)  # fmt: skip


def malformed(chance: random.Random) -> tuple[str, str, bytes]:
    """Return method, path and body of a request that is wrong in some way."""
    method = chance.choice(("POST", "POST", "POST", "PUT", "DELETE", "PATCH"))
    body: dict[str, Any] = {chance.choice(KEYS): chance.choice(VALUES) for _ in range(chance.randrange(6))}
    # never a whole request by chance
    body["unknown"] = chance.choice(VALUES)
    data = json.dumps(body).encode()
    kind = chance.randrange(6)
    if kind == 0:
        data = data[: chance.randrange(len(data))]
    elif kind == 1:
        data = chance.randbytes(chance.randrange(200))
    elif kind == 2:
        data = b"[" * chance.randrange(5000)
    elif kind == 3:
        data = data.replace(b":", b":" * chance.randrange(3))
    return method, chance.choice(PATHS), data


def send_malformed(server: RunningServer, count: int) -> None:
    chance = random.Random(0)
    with httpx.Client(timeout=120) as client:
        for _ in range(count):
            method, path, data = malformed(chance)
            response = client.request(method, server.url + path, content=data)
            assert 400 <= response.status_code < 500, (method, path, data, response.text)
    assert server.complete("base", "1") == server.complete("base", "1")
    server.assert_nothing_is_held()


def test_malformed_requests_get_4xx_and_the_server_lives(server: RunningServer) -> None:
    send_malformed(server, 60)


@pytest.mark.slow
def test_a_thousand_malformed_requests(server: RunningServer) -> None:
    send_malformed(server, 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
def test_broken_http_is_survived(server: RunningServer, data: bytes) -> None:
    import socket

    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(data)
        answer = connection.recv(200)
    assert answer.startswith(b"HTTP/1.1 4")
    server.complete("base", "1")


def leave_in_the_middle(server: RunningServer, count: int) -> None:
    async def one(client: httpx.AsyncClient, index: int) -> None:
        chance = random.Random(index)
        body = {
            "model": chance.choice(["base", "a0", "a1", "a2"]),
            "prompt": "1" * chance.randrange(1, 60),
            "max_tokens": 300,
            "ignore_eos": True,
            "stream": index % 2 == 0,
            "n": chance.choice([1, 2]),
        }
        try:
            if body["stream"]:
                async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
                    left = chance.randrange(4)
                    async for _ in response.aiter_lines():
                        left -= 1
                        if left < 0:
                            return
            else:
                timeout = chance.random() * 0.3 + 0.01
                await client.post(f"{server.url}/v1/completions", json=body, timeout=timeout)
        except httpx.TimeoutException:
            return

    async def run() -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            for start in range(0, count, 20):
                await asyncio.gather(*(one(client, index) for index in range(start, min(start + 20, count))))

    asyncio.run(run())
    server.assert_nothing_is_held()


def test_clients_that_leave_in_the_middle_leave_nothing_behind(server: RunningServer) -> None:
    leave_in_the_middle(server, 20)


@pytest.mark.slow
def test_two_hundred_clients_that_leave(server: RunningServer) -> None:
    leave_in_the_middle(server, 200)


def test_a_full_queue_answers_429_with_retry_after(server: RunningServer) -> None:
    thread = server.opened.thread
    thread.num_open += 60
    try:
        response = server.post("/v1/completions", {"model": "base", "prompt": ["1"] * 5, "max_tokens": 1})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert "of at most 64 requests" in response.json()["error"]["message"]
        assert server.post("/v1/completions", {"model": "base", "prompt": "1", "max_tokens": 1}).status_code == 200
    finally:
        thread.num_open -= 60
    server.assert_nothing_is_held()


def test_adapters_come_and_go_under_load(server: RunningServer) -> None:
    """Requests run while their adapter is replaced and unloaded: each gets the answer of one of its versions."""
    root = server.opened.model.pool.statuses()[0].path
    assert root is not None
    model = root.parent.parent / "model"
    versions = [write_adapter(model, root.parent.parent / "more" / f"v{n}", r=4, seed=10 + n) for n in range(2)]
    for name, folder in (("x0", versions[0]), ("x1", versions[1])):
        assert load(server, name, str(folder)).status_code == 200
    steady = {name: server.complete(name, "12+3=") for name in ("base", "a0", "a1", "a2")}
    right = [server.complete(name, "12+3=") for name in ("x0", "x1")]
    assert right[0] != right[1]
    assert load(server, "x", str(versions[0])).status_code == 200
    stop = threading.Event()

    def ask(name: str) -> list[str]:
        answers = []
        while not stop.is_set():
            answers.append(server.complete(name, "12+3="))
        return answers

    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, name) for name in ("x", "x", "base", "a0", "a2")]
        for turn in range(2):
            assert load(server, "x", str(versions[(turn + 1) % 2]), load_inplace=True).status_code == 200
            body = {"lora_name": f"gone{turn}", "lora_path": str(versions[0])}
            assert server.post("/v1/load_lora_adapter", body).status_code == 200
            running = threads.submit(server.complete, f"gone{turn}", "12+3=")
            assert running.result(120) == right[0]
            assert server.post("/v1/unload_lora_adapter", {"lora_name": f"gone{turn}"}).status_code == 200
            assert server.post("/v1/completions", {"model": f"gone{turn}", "prompt": "1"}).status_code == 404
        stop.set()
        found = [each.result(120) for each in asked]
    assert set(found[0]) | set(found[1]) <= set(right)
    assert [set(answers) for answers in found[2:]] == [{steady["base"]}, {steady["a0"]}, {steady["a2"]}]
    assert min(map(len, found)) > 1
    for name in ("x", "x0", "x1"):
        assert server.post("/v1/unload_lora_adapter", {"lora_name": name}).status_code == 200
    server.assert_nothing_is_held()


def load(server: RunningServer, name: str, path: str, **more: Any) -> httpx.Response:
    return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})


def test_a_request_that_runs_survives_its_adapter(server: RunningServer) -> None:
    """Unloaded in the middle of a stream, the adapter answers to the end."""
    settings = {"max_tokens": 100, "ignore_eos": True}
    expected = server.complete("a1", "4+4=", **settings)
    assert load(server, "brief", "adapters/a1").status_code == 200

    def unload() -> httpx.Response:
        return server.post("/v1/unload_lora_adapter", {"lora_name": "brief"})

    text, seen = "", 0
    body = {"model": "brief", "prompt": "4+4=", "temperature": 0, "stream": True, **settings}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                seen += 1
                if seen == 3:
                    assert unload().status_code == 200
    assert text == expected
    assert unload().status_code == 404
    server.assert_nothing_is_held()
