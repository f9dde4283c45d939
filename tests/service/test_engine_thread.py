"""What a server takes in is bounded, and a server that closes takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.service.engine_thread import EngineThread, QueueFullError, ServerClosingError
from cohort.serving.sequence import SequenceRequest
from cohort.serving.step_output import FinishReason, StepOutput

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


class ScriptedEngine:
    """Gives a token of each sequence a step; notes what has been heard when a pass is computed."""

    def __init__(self, lengths: dict[int, int], heard: list[int]) -> None:
        self.scheduler = SimpleNamespace(running=[1])
        self._left, self._heard, self.at_passes = dict(lengths), heard, list[list[int]]()
        self.texts_after: list[int] = []

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def ready_tokens(self) -> dict[str, int]:
        return {"": len(self._left)}

    def step(self, *, meanwhile: Callable[[], None], adds_texts: bool) -> list[StepOutput]:
        assert not adds_texts, "texts are made while the next pass is computed"
        meanwhile()
        self.at_passes.append(list(self._heard))
        outputs = []
        for number in list(self._left):
            self._left[number] -= 1
            finish = None if self._left[number] else FinishReason.LENGTH
            if finish:
                del self._left[number]
            outputs.append(StepOutput(number=number, token=number, finish=finish))
        return outputs

    def add_texts(self) -> None:
        self.texts_after.append(len(self._heard))

    def abort_all(self) -> list[int]:
        return []


def test_a_passs_outputs_are_handed_on_while_the_next_one_is_computed_and_the_last_at_once() -> None:
    heard: list[int] = []
    engine: Any = ScriptedEngine({7: 1, 8: 3}, heard)
    thread = EngineThread(engine, SimpleNamespace(close=lambda: None), max_waiting=3)  # type: ignore[arg-type]
    thread.on_step = lambda outputs: heard.extend(output.number for output in outputs)
    thread.num_open = 2
    thread.start()
    assert thread.close(drain_seconds=10.0)
    assert engine.at_passes == [[], [7, 8], [7, 8, 8]]
    # before what a pass gave is handed on
    assert engine.texts_after == [0, 2, 3]
    assert heard == [7, 8, 8, 8]


def test_what_a_pass_gave_is_not_kept_where_the_rest_is_given_up() -> None:
    heard: list[int] = []
    engine: Any = ScriptedEngine({7: 1, 8: 1000}, heard)
    thread = EngineThread(engine, SimpleNamespace(close=lambda: None), max_waiting=3)  # type: ignore[arg-type]
    step = engine.step

    def step_and_give_up(**asked: Any) -> list[StepOutput]:
        outputs: list[StepOutput] = step(**asked)
        thread._commands.put(engine._left.clear)
        return outputs

    engine.step = step_and_give_up
    thread.on_step = lambda outputs: heard.extend(output.number for output in outputs)
    thread.num_open = 1
    thread.start()
    assert thread.close(drain_seconds=10.0)
    assert heard == [7, 8]


class CountingWriter:
    """Notes what the streams had been told at each flush."""

    def __init__(self, told: list[int]) -> None:
        self._told, self.flushed, self.is_closed = told, list[list[int]](), False

    def flush(self) -> None:
        if self._told:
            self.flushed.append(list(self._told))
            self._told.clear()

    def close(self) -> None:
        self.is_closed = True


class ToldListener:
    """A stream that another process writes: it never waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: list[int]) -> None:
        self.loop, self._told = loop, told
        self.numbers, self.is_cancelled = set[int](), False

    def put(self, place: int, output: StepOutput) -> bool:
        self._told.append(place if output.finish is not FinishReason.FAILED else -1)
        return False

    def wake(self) -> None:
        raise AssertionError("nothing waits for it")


def test_streams_of_another_process_are_told_once_a_pass_and_of_what_is_refused() -> None:
    told: list[int] = []
    writer: Any = CountingWriter(told)
    engine: Any = ScriptedEngine({}, [])
    numbers = iter([7, 8])

    def submit(request: SequenceRequest) -> int:
        if request.max_new_tokens == 99:
            raise ValueError("the pool is too small")
        number = next(numbers)
        engine._left[number] = request.max_new_tokens
        return number

    engine.submit = submit
    pool: Any = SimpleNamespace(close=lambda: None)
    thread, loop = EngineThread(engine, pool, max_waiting=3, writer=writer), asyncio.new_event_loop()
    try:
        requests = [SequenceRequest(prompt_tokens=[1], max_new_tokens=most) for most in (2, 1, 99)]
        thread.submit_to(ToldListener(loop, told), requests)
        thread.start()
        assert thread.close(drain_seconds=10.0)
    finally:
        loop.close()
    assert writer.flushed == [[-1], [0, 1], [0]]
    assert writer.is_closed
