"""The list of runs: a slow one holds no other up, and what has not gone on is not read again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from cohort.service.dashboard import runs_view
from cohort.service.dashboard.followed_run import FollowedRun, RunMoment
from cohort.service.dashboard.runs_view import RunRows
from tests.runs.small_run import write_small_run


class SlowRun(FollowedRun):
    """A run that is read only when the test lets it."""

    may_go_on = threading.Event()

    def look(self) -> RunMoment:
        assert self.may_go_on.wait(60)
        return super().look()


def test_a_slow_run_is_listed_without_its_numbers_until_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_at_most(seconds: float) -> None:
        monkeypatch.setattr(runs_view, "_PATIENCE_SECONDS", seconds)

    runs = {}
    for name, kind in (("quick", FollowedRun), ("slow", SlowRun)):
        directory, store, _ = write_small_run(tmp_path / name)
        store.close()
        runs[name] = kind(directory)

    async def listed() -> None:
        rows = RunRows()
        # a busy machine may take long to read it for the first time, and looks at it at once when it is known
        wait_at_most(60)
        await rows.rows({"quick": runs["quick"]})
        wait_at_most(0.5)
        first = await rows.rows(runs)
        assert [row["num_trials"] for row in first if "num_trials" in row] == [4]
        assert first[1] == {"name": "slow", "is_reading": True}
        SlowRun.may_go_on.set()
        wait_at_most(60)
        second = await rows.rows(runs)
        assert [row["num_trials"] for row in second] == [4, 4]
        assert (await rows.rows(runs))[1] is second[1], "nothing was written, so nothing is read"

    asyncio.run(listed())
