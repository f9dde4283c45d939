"""What the parts of a run share."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.runs.facts import Activity
from tests.engine.train.fakes import open_run, spec_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock) -> OpenRun:
    return open_run(tmp_path / "run", [spec_of(0)], clock=clock)


def test_all_parts_add_to_the_same_seconds_by_the_runs_own_clock(run: OpenRun, clock: ManualClock) -> None:
    with run.time_spent.on(Activity.TRAIN):
        clock.advance(2.0)
        with run.time_spent.on(Activity.EVALUATE):
            clock.advance(3.0)
    assert run.time_spent is run.time_spent
    seconds = run.time_spent.take()
    # each second counts once
    assert (seconds[Activity.TRAIN], seconds[Activity.EVALUATE]) == (2.0, 3.0)


def test_two_runs_of_one_process_share_neither_seconds_nor_defaults(tmp_path: Path, run: OpenRun) -> None:
    other = open_run(tmp_path / "other", [spec_of(0)], clock=ManualClock())
    assert other.time_spent is not run.time_spent
    assert other.options == run.options == RunOptions()
    assert not run.callbacks


def test_options_are_checked_by_name_and_stay_as_they_are() -> None:
    wrong: Any = {"checkpoint_second": 1.0}
    with pytest.raises(InputError, match=r"RunOptions: checkpoint_second: .*Did you mean checkpoint_seconds\?"):
        RunOptions(**wrong)
    wrong = {"checkpoint_seconds": float("nan"), "token_budget": 0, "num_ranks": True, "share_gpu": "no"}
    with pytest.raises(InputError) as caught:
        RunOptions(**wrong)
    assert [problem.where.key for problem in caught.value.problems] == [(name,) for name in wrong]
    assert "allowed: a whole number of at least 1, or None" in str(caught.value)
    assert (RunOptions().checkpoint_seconds, RunOptions().checkpoint_share) == (60.0, 0.015)
    counted: Any = np.int64(64)
    assert RunOptions(token_budget=counted) == RunOptions(token_budget=64)
    options: Any = RunOptions(token_budget=64)
    with pytest.raises(FrozenInstanceError):
        options.token_budget = 128
