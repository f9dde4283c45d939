"""The runs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.runs.store import RunStore
from tests.runs.log_entries import new_trials
from tests.runs.small_run import SmallRun, write_small_run


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    """Four trials: 0 completes, 1 is stopped, 2 diverges to NaN without an evaluation, 3 never begins."""
    return write_small_run(tmp_path / "run")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> RunStore:
    """A run of three trials that has done nothing yet."""
    store = RunStore.create(tmp_path / "run.db", clock=clock)
    store.add_trials(new_trials(3))
    return store
