"""What the guard let through: keys, sizes of bodies, and how answers are counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.types import Message, Receive, Scope, Send

from cohort.service.access.request_guard import RequestGuard

Answer = tuple[int, dict[bytes, bytes], bytes]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    scope["route"] = type("Route", (), {"path": "/v1/{thing}"})()
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def call(
    path: str, *pieces: bytes, headers: dict[str, str] | None = None, keys: tuple[str, ...] = (), limit: int = 8
) -> tuple[Answer | None, list[tuple[str, int]]]:
    """Send the pieces of a body; return the answer, None where there is none, and what was counted."""
    counted: list[tuple[str, int]] = []
    guard = RequestGuard(echo, api_keys=keys, max_body_bytes=limit, count_answer=lambda *found: counted.append(found))
    waiting: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": index + 1 < len(pieces)}
        for index, piece in enumerate(pieces)
    ]
    sent: list[Any] = []

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    asyncio.run(guard({"type": "http", "path": path, "headers": given}, receive, send))
    if not sent:
        return None, counted
    return (sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]), counted


def test_a_body_in_pieces_reaches_the_route_whole() -> None:
    answer, counted = call("/v1/completions", b"abc", b"", b"def")
    assert answer is not None
    assert (answer[0], answer[2]) == (200, b"abcdef")
    assert counted == [("/v1/{thing}", 200)]


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/v1/models", None, 401),
        ("/v1/models", "Bearer other", 401),
        ("/v1/models", "Basic second", 401),
        ("/v1/models", "bearer second", 200),
        ("/health", None, 200),
    ],
)
def test_only_v1_needs_one_of_the_keys(path: str, authorization: str | None, status: int) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer, counted = call(path, b"", headers=headers, keys=("first", "second"))
    assert answer is not None
    assert answer[0] == status
    if status == 401:
        assert answer[1][b"www-authenticate"] == b"Bearer"
        assert json.loads(answer[2])["error"]["type"] == "authentication_error"
        # no route was reached
        assert counted == [("other", 401)]


@pytest.mark.parametrize(
    ("pieces", "length", "found"),
    [
        ((b"",), "9", "the body has 9 bytes; at most 8 are allowed"),
        ((b"",), "many", "the body has many bytes; at most 8 are allowed"),
        ((b"12345", b"6789"), None, "the body has more than 8 bytes"),
    ],
)
def test_large_bodies_are_refused_before_they_are_read(
    pieces: tuple[bytes, ...], length: str | None, found: str
) -> None:
    answer, counted = call("/v1/chat", *pieces, headers={} if length is None else {"Content-Length": length})
    assert answer is not None
    assert answer[0] == 413
    assert json.loads(answer[2])["error"]["message"] == found
    assert counted == [("other", 413)]


@pytest.mark.parametrize("pieces", [(b"12345678",), (b"12345", b"678")])
@pytest.mark.parametrize("declares", [True, False])
def test_a_body_of_just_the_limit_is_let_through(pieces: tuple[bytes, ...], declares: bool) -> None:
    answer, counted = call("/v1/chat", *pieces, headers={"Content-Length": "8"} if declares else {})
    assert answer is not None
    assert (answer[0], answer[2]) == (200, b"12345678")
    assert counted == [("/v1/{thing}", 200)]


def test_who_hangs_up_gets_no_answer() -> None:
    assert call("/v1/chat") == (None, [])
