"""A stream writes what its connection takes, makes one event of what it could not write, and ends with its client."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cohort.service.request_times import IntervalCounts, RequestTimes
from cohort.service.streams.messages import Begin
from cohort.service.streams.open_stream import OpenStream
from cohort.service.streams.sent_tokenizer import StreamTexts
from cohort.serving.step_output import FinishReason, StepOutput


class Words:
    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        del skip_special_tokens
        return "".join(f" {token}" for token in tokens)


class Nothing:
    def observe(self, amount: float) -> None:
        """Forget it."""


def stream_of(*, is_chat: bool = False, makes_texts: bool = True) -> OpenStream:
    begin = Begin(
        number=0,
        first_key=40,
        num_choices=1,
        makes_texts=makes_texts,
        model="m",
        is_chat=is_chat,
        with_logprobs=False,
        num_prompt_tokens=2,
        with_usage=False,
        begun=time.perf_counter(),
    )
    times = RequestTimes(Nothing(), IntervalCounts(), Nothing(), begun=begin.begun)
    return OpenStream(begin, texts=StreamTexts(Words()), times=times)


@contextmanager
def attached(stream: OpenStream, end: socket.socket) -> Iterator[OpenStream]:
    stream.attach(end.dup())
    yield stream
    stream.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def chunks(data: bytes) -> list[str]:
    found = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        found.append(rest[:length].decode())
        data = rest[length + 2 :]
    return found


def texts(chunk: str) -> list[str]:
    return [json.loads(event)["choices"][0]["text"] for event in re.findall(r"data: (\{.*\})\n\n", chunk)]


def hear(stream: OpenStream, *tokens: int, finish: FinishReason | None = None) -> None:
    for token in tokens:
        stream.hear(40, StepOutput(number=40, token=token, finish=finish if token == tokens[-1] else None))


def test_tokens_become_texts_events_and_chunks(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    with attached(stream_of(), ours) as stream:
        hear(stream, 1)
        stream.write()
        hear(stream, 2, 3, finish=FinishReason.LENGTH)
        stream.write()
        assert stream.is_whole
    first, second = chunks(theirs.recv(1 << 16))
    assert texts(first) == [" 1"]
    assert texts(second) == [" 2 3"]
    assert second.endswith("data: [DONE]\n\n")


def test_what_came_before_the_connection_is_written_behind_the_opening(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    stream = stream_of(is_chat=True)
    hear(stream, 1, 2, finish=FinishReason.STOP)
    stream.write()
    assert not stream.is_over
    with attached(stream, ours):
        stream.write()
    assert stream.is_whole
    opening, rest = chunks(theirs.recv(1 << 16))
    assert '"role": "assistant"' in opening
    assert '"content": " 1 2"' in rest


def test_texts_that_were_made_before_are_kept(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    with attached(stream_of(makes_texts=False), ours) as stream:
        stream.hear(40, StepOutput(number=40, token=9, text="up to the stop", finish=FinishReason.STOP))
        stream.write()
    assert texts(chunks(theirs.recv(1 << 16))[0]) == ["up to the stop"]


def test_a_slow_client_gets_all_in_order_and_later_tokens_as_one_event(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    token, data = 0, b""
    with attached(stream_of(), ours) as stream:
        while not stream.waits_for_client:
            hear(stream, token)
            stream.write()
            token += 1
        behind = list(range(token, token + 50))
        for each in behind:
            hear(stream, each)
            stream.write()
        hear(stream, 10_000, finish=FinishReason.LENGTH)
        while not stream.is_whole:
            data += theirs.recv(1 << 16)
            stream.write()
    ours.close()
    while piece := theirs.recv(1 << 16):
        data += piece
    found = [text for chunk in chunks(data) for text in texts(chunk)]
    assert "".join(found) == "".join(f" {each}" for each in [*range(token), *behind, 10_000])
    assert found[-1] == "".join(f" {each}" for each in [*behind, 10_000])


def test_a_client_that_left_breaks_its_stream(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    with attached(stream_of(), ours) as stream:
        theirs.close()
        hear(stream, 1)
        stream.write()
        assert stream.is_broken
        assert stream.is_over
        assert not stream.waits_for_client
        assert not stream.is_whole
