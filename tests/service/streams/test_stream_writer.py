"""The process that writes: it writes what passes gave, says what has ended, and neither process outlives the other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cohort.models.tokenizer import load_tokenizer
from cohort.service.request_times import IntervalCounts
from cohort.service.streams.stream_writer import StreamWriter, WrittenStream
from cohort.serving.step_output import FinishReason, StepOutput
from tests.conftest import REPOSITORY
from tests.support.process_states import wait_until_gone

MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"
_SECONDS = 20.0


@pytest.fixture
def writer() -> Iterator[StreamWriter]:
    found = StreamWriter(load_tokenizer(MODEL))
    yield found
    found.close()


def begin(writer: StreamWriter, *, num_choices: int = 1) -> WrittenStream:
    stream = writer.begin(
        loop=asyncio.get_running_loop(),
        num_choices=num_choices,
        makes_texts=True,
        model="m",
        is_chat=False,
        with_logprobs=False,
        num_prompt_tokens=1,
        with_usage=False,
    )
    assert stream is not None
    return stream


def token(number: int, *, finish: FinishReason | None = None) -> StepOutput:
    # the first tokens are special: they have no text
    return StepOutput(number=0, token=40 + number, finish=finish)


async def read_to_end(end: socket.socket) -> bytes:
    data = b""
    while piece := await asyncio.to_thread(end.recv, 1 << 16):
        data += piece
    return data


def test_passes_of_several_streams_are_written_and_their_ends_told(writer: StreamWriter) -> None:
    heard: list[tuple[int, int, int]] = []

    def on_times(first: list[float], whole: list[float], each: IntervalCounts) -> None:
        heard.append((len(first), sum(each.counts), len(whole)))

    writer.on_times = on_times

    async def run() -> tuple[bytes, bytes]:
        streams, ends = [begin(writer, num_choices=2), begin(writer)], [socket.socketpair() for _ in range(2)]
        for stream, (ours, _) in zip(streams, ends, strict=True):
            writer.attach(stream, ours.fileno())
            # the writer has an end of its own
            ours.close()
        for number in range(3):
            finish = FinishReason.LENGTH if number == 2 else None
            streams[0].put(0, token(number, finish=finish))
            streams[0].put(1, token(number + 3, finish=finish))
            streams[1].put(0, token(number + 6, finish=finish))
            writer.flush()
        wholes = await asyncio.wait_for(asyncio.gather(*(stream.ended for stream in streams)), _SECONDS)
        assert wholes == [True, True]
        assert [stream.num_tokens for stream in streams] == [6, 3]
        first, second = [await read_to_end(theirs) for _, theirs in ends]
        for _, theirs in ends:
            theirs.close()
        return first, second

    first, second = asyncio.run(run())
    assert first.endswith(b"data: [DONE]\n\n\r\n")
    assert b'"index": 1' in first
    assert b'"index": 1' not in second
    writer.close()
    assert tuple(map(sum, zip(*heard, strict=True))) == (3, 6, 3)


def test_what_is_forgotten_is_cut_off_and_its_connection_let_go(writer: StreamWriter) -> None:
    async def run() -> bytes:
        stream, (ours, theirs) = begin(writer), socket.socketpair()
        writer.attach(stream, ours.fileno())
        ours.close()
        stream.put(0, token(1))
        writer.flush()
        writer.forget(stream)
        # a pass that was under way
        stream.put(0, token(2, finish=FinishReason.LENGTH))
        writer.flush()
        other, (own, far) = begin(writer), socket.socketpair()
        writer.attach(other, own.fileno())
        own.close()
        other.put(0, token(3, finish=FinishReason.STOP))
        writer.flush()
        assert await asyncio.wait_for(other.ended, _SECONDS)
        assert not stream.ended.done()
        cut = await read_to_end(theirs)
        theirs.close()
        far.close()
        return cut

    assert b"[DONE]" not in asyncio.run(run())


def test_a_client_that_left_ends_its_stream_alone(writer: StreamWriter) -> None:
    async def run() -> None:
        left, (ours, theirs) = begin(writer), socket.socketpair()
        writer.attach(left, ours.fileno())
        ours.close()
        theirs.close()
        left.put(0, token(1))
        writer.flush()
        assert await asyncio.wait_for(left.ended, _SECONDS) is False
        begin(writer)

    asyncio.run(run())


def test_where_the_process_ends_its_streams_are_cut_off_and_no_more_begin(
    writer: StreamWriter, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        stream, (ours, theirs) = begin(writer), socket.socketpair()
        with ours, theirs:
            writer.attach(stream, ours.fileno())
            os.kill(writer.process_id, signal.SIGKILL)
            assert await asyncio.wait_for(stream.ended, _SECONDS) is False
        # sending to it does no harm
        stream.put(0, token(1))
        writer.flush()
        loop = asyncio.get_running_loop()
        found = writer.begin(
            loop=loop,
            num_choices=1,
            makes_texts=True,
            model="m",
            is_chat=False,
            with_logprobs=False,
            num_prompt_tokens=1,
            with_usage=False,
        )
        assert found is None

    asyncio.run(run())
    assert "the process that writes streams has ended: 1 are cut off" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_for_the_server(writer: StreamWriter, number: signal.Signals) -> None:
    async def run() -> bool:
        # it listens to signals no more once it has opened a stream
        for _ in range(2):
            stream, (ours, theirs) = begin(writer), socket.socketpair()
            with ours, theirs:
                writer.attach(stream, ours.fileno())
                stream.put(0, token(1, finish=FinishReason.STOP))
                writer.flush()
                whole = await asyncio.wait_for(stream.ended, _SECONDS)
            os.kill(writer.process_id, number)
        return whole

    assert asyncio.run(run())


def test_it_ends_when_it_is_closed() -> None:
    writer = StreamWriter(load_tokenizer(MODEL))
    writer.close()
    wait_until_gone(writer.process_id)
    assert writer._process.returncode == 0


def test_it_ends_with_the_process_that_started_it() -> None:
    code = f"""
import os, signal
from cohort.models.tokenizer import load_tokenizer
from cohort.service.streams.stream_writer import StreamWriter
print(StreamWriter(load_tokenizer({str(MODEL)!r})).process_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr
    wait_until_gone(int(found.stdout))
