"""Status: who runs it, how fast, and how long it will take."""

from __future__ import annotations

import pytest

from cohort.runs.facts import RunState, TaskFacts
from cohort.runs.records import TrialStatus
from cohort.runs.status import read_status
from tests.runs.small_run import SmallRun


def test_status_says_who_runs_it_and_how_fast(run: SmallRun) -> None:
    directory, store, clock = run
    store.trial_entered(3, slot=1)
    with directory.lock():
        status = read_status(directory)
    assert status.state == "running"
    assert status.holder.startswith("process ")
    assert status.counts[TrialStatus.RUNNING] == 1
    assert status.counts[TrialStatus.PARKED] == 0
    assert status.resident == ((1, 3),)
    assert status.stopped_reasons == {"underperforming": 1, "non-finite": 1}
    # run time is 10 s, and what was logged at second 0 lies outside the open window
    assert status.tokens_per_second == pytest.approx((100 + 50 + 50) / 10)
    # trial 3 has four steps of 100 tokens left, and 150/550 as many tokens to evaluate
    assert status.seconds_left == pytest.approx(4 * 100 * (1 + 150 / 550) / 20)
    # with a warm-up of one step and a quarter kept, three quarters of its other steps are not expected
    store.set_facts(task=TaskFacts(warmup_fraction=0.25, kept_share=0.25))
    assert read_status(directory).seconds_left == pytest.approx((1 + 0.25 * 3) * 100 * (1 + 150 / 550) / 20)
    assert read_status(directory).state == "stopped"
    store.set_facts(state=RunState.DONE)
    assert (read_status(directory).state, read_status(directory).seconds_left) == ("done", 0.0)
    assert clock.monotonic() == 10
