"""A call is carried out once, whatever is asked how often, and its answer is kept for a while."""

from __future__ import annotations

import asyncio

import pytest

from cohort.core.errors import CohortError, InputError
from cohort.service.tinker.futures import Answer, GoneError, Promises


def test_a_call_runs_once_and_answers_each_time() -> None:
    calls = []

    async def run() -> Answer:
        calls.append(1)
        await asyncio.sleep(0.02)
        return Answer(json={"a": 1})

    async def scenario() -> None:
        promises = Promises()
        assert promises.make("m:1", b"x", run) == promises.make("m:1", b"x", run) == "m:1"
        assert await promises.wait("m:1", timeout_seconds=0.001) is None
        for _ in range(2):
            answer = await promises.wait("m:1", timeout_seconds=5)
            assert answer is not None
            assert answer.json == {"a": 1}
        with pytest.raises(InputError, match="used with another body"):
            promises.make("m:1", b"y", run)
        with pytest.raises(GoneError):
            await promises.wait("m:2", timeout_seconds=5)

    asyncio.run(scenario())
    assert calls == [1]


def test_a_failure_is_an_answer_that_says_whose_fault_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong() -> Answer:
        raise CohortError("rank is wrong")

    async def broken() -> Answer:
        raise ZeroDivisionError

    async def scenario() -> None:
        promises = Promises()
        promises.make("m:1", b"", wrong)
        promises.make("m:2", b"", broken)
        one, two = [await promises.wait(name, timeout_seconds=5) for name in ("m:1", "m:2")]
        assert one == Answer(json={"error": "rank is wrong", "category": "user"})
        assert two == Answer(json={"error": "internal error; the call was not carried out", "category": "server"})

    asyncio.run(scenario())
    assert "a call failed" in caplog.text


def test_only_the_last_answers_are_kept() -> None:
    async def run() -> Answer:
        return Answer(json={})

    async def scenario() -> None:
        promises = Promises(most=2)
        for number in range(4):
            promises.make(f"m:{number}", b"", run)
            await asyncio.sleep(0.01)
        with pytest.raises(GoneError):
            await promises.wait("m:0", timeout_seconds=1)
        assert await promises.wait("m:3", timeout_seconds=1) is not None
        promises.cancel("m:3")
        with pytest.raises(GoneError):
            await promises.wait("m:3", timeout_seconds=1)

    asyncio.run(scenario())


def test_large_answers_make_room_for_later_ones() -> None:
    async def run() -> Answer:
        return Answer(message=bytes(60))

    async def scenario() -> None:
        promises = Promises(most_bytes=130)
        for number in range(3):
            promises.make(f"m:{number}", b"", run)
            assert await promises.wait(f"m:{number}", timeout_seconds=1) is not None
        with pytest.raises(GoneError):
            await promises.wait("m:0", timeout_seconds=1)
        assert await promises.wait("m:1", timeout_seconds=1) is not None
        promises.cancel("m:1")
        # one that is larger than all together is kept for its client
        promises = Promises(most_bytes=10)
        promises.make("m:9", b"", run)
        await asyncio.sleep(0.01)
        assert await promises.wait("m:9", timeout_seconds=1) is not None

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_while_its_answer_is_waited_for_is_gone() -> None:
    async def run() -> Answer:
        await asyncio.sleep(60)
        return Answer(json={})

    async def scenario() -> None:
        promises = Promises()
        promises.make("m:1", b"", run)
        waiting = asyncio.ensure_future(promises.wait("m:1", timeout_seconds=60))
        await asyncio.sleep(0.01)
        promises.cancel("m:1")
        with pytest.raises(GoneError, match="call 'm:1' was cancelled"):
            await waiting

    asyncio.run(scenario())
