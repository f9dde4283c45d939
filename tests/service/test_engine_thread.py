"""What a server takes in is bounded, and a server that closes takes nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.service.engine_thread import EngineThread, QueueFullError, ServerClosingError
from cohort.serving.sequence import SequenceRequest

REQUEST = SequenceRequest(prompt_tokens=[1, 2], max_new_tokens=1)


def thread_of(*, max_waiting: int) -> EngineThread:
    """A thread that is never started: what is submitted waits."""
    engine: Any = SimpleNamespace(has_work=False, scheduler=SimpleNamespace(running=[]))
    pool: Any = SimpleNamespace(close=lambda: None)
    return EngineThread(engine, pool, max_waiting=max_waiting)


def test_a_request_is_taken_whole_or_not_at_all() -> None:
    thread, loop = thread_of(max_waiting=3), asyncio.new_event_loop()
    try:
        thread.submit([REQUEST] * 2, loop=loop)
        with pytest.raises(QueueFullError, match="2 of at most 3 requests are waiting or running"):
            thread.submit([REQUEST] * 2, loop=loop)
        assert thread.num_open == 2
        thread.submit([REQUEST], loop=loop)
        assert thread.num_open == 3
    finally:
        loop.close()


def test_a_server_that_lost_a_part_of_its_model_says_why_and_takes_nothing() -> None:
    thread, loop, heard = thread_of(max_waiting=3), asyncio.new_event_loop(), list[str]()
    thread.on_lost = lambda: heard.append("lost")
    thread.lose("rank 1 is gone")
    assert (thread.lost, heard, thread.is_closing) == ("rank 1 is gone", ["lost"], True)
    try:
        with pytest.raises(ServerClosingError):
            thread.submit([REQUEST], loop=loop)
    finally:
        loop.close()
