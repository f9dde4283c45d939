"""Viewers hear each change once, the rest after a lost connection, and are told to begin again where that is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cohort.core.events import StepDone
from cohort.runs.facts import RunState
from cohort.service.dashboard.followed_run import FollowedRun, RunMoment
from cohort.service.dashboard.run_feed import RunFeed
from tests.runs.small_run import write_small_run


def _step(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=0.5, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)


async def _next(changes: AsyncIterator[dict[str, Any] | None]) -> dict[str, Any]:
    while (change := await asyncio.wait_for(anext(changes), 60)) is None:
        pass
    return change


def _heard(feed: RunFeed, begun: RunMoment, *, stride: int) -> AsyncIterator[dict[str, Any] | None]:
    """Return what a viewer hears that holds the run as it was at ``begun``."""
    return feed.changes(
        generation=begun.generation,
        number=begun.number,
        position=begun.position,
        stride=stride,
        ending=asyncio.Event(),
    )


def test_a_viewer_hears_what_happened_since(tmp_path: Path) -> None:
    directory, store, _ = write_small_run(tmp_path / "run")

    async def watched() -> None:
        feed = RunFeed(FollowedRun(directory), poll_seconds=0.01)
        begun = await feed.moment()
        changes = _heard(feed, begun, stride=1)
        heard = asyncio.ensure_future(_next(changes))
        await asyncio.sleep(0.05)
        assert not heard.done(), "nothing has happened yet"
        store.append([_step(3, 1), _step(3, 2)])
        change = await heard
        assert change["steps"] == [[3, 1, 0.5], [3, 2, 0.5]]
        assert [row["id"] for row in change["trials"]] == [3]
        assert change["trials"][0]["steps"] == 2
        # another viewer lost the connection before that, and draws every second step
        late = _heard(feed, begun, stride=2)
        assert (await _next(late))["steps"] == [[3, 1, 0.5], [3, 2, 0.5]], "the first step is always drawn"
        store.append([_step(3, 3), _step(3, 4)])
        assert (await _next(changes))["steps"] == [[3, 3, 0.5], [3, 4, 0.5]]
        assert (await _next(late))["steps"] == [[3, 4, 0.5]]

    asyncio.run(watched())
    store.close()


def test_a_record_that_went_back_is_loaded_again(tmp_path: Path) -> None:
    directory, store, _ = write_small_run(tmp_path / "run")

    async def watched() -> None:
        feed = RunFeed(FollowedRun(directory), poll_seconds=0.01)
        begun = await feed.moment()
        changes = _heard(feed, begun, stride=1)
        store.truncate_after(begun.position - 3)
        assert await _next(changes) == {"reload": True}
        again = await feed.moment()
        assert again.generation != begun.generation
        # a page that slept through it learns the same
        asleep = _heard(feed, begun, stride=1)
        assert await _next(asleep) == {"reload": True}

    asyncio.run(watched())
    store.close()


def test_what_changed_between_loading_and_listening_is_heard(tmp_path: Path) -> None:
    directory, store, _ = write_small_run(tmp_path / "run")

    async def watched() -> None:
        feed = RunFeed(FollowedRun(directory), poll_seconds=0.01)
        begun = await feed.moment()
        store.set_facts(state=RunState.DONE)
        await asyncio.sleep(0.05)
        assert (await feed.moment()).position == begun.position, "no row of the log says it"
        changes = _heard(feed, begun, stride=1)
        assert (await _next(changes))["header"]["state"] == "done"

    asyncio.run(watched())
    store.close()


def test_the_end_of_a_run_is_heard_and_a_run_that_is_gone_is_said(tmp_path: Path) -> None:
    directory, store, _ = write_small_run(tmp_path / "run")

    async def watched() -> None:
        feed = RunFeed(FollowedRun(directory), poll_seconds=0.01)
        begun = await feed.moment()
        changes = _heard(feed, begun, stride=1)
        heard = asyncio.ensure_future(_next(changes))
        await asyncio.sleep(0.05)
        store.set_facts(state=RunState.DONE)
        assert (await heard)["header"]["state"] == "done"
        store.close()
        directory.database.unlink()
        assert "does not exist" in (await _next(changes))["error"]

    asyncio.run(watched())
