"""Balancing shortens a plan."""

from __future__ import annotations

import pytest

from benchmarks.planning.solo_baselines import min_gpu_plan
from cohort.scheduling.packing.balancing import balance_jobs
from cohort.scheduling.packing.records import PackPlan
from cohort.scheduling.packing.verify import check_pack_plan

from .packing_instances import problem, random_trials


@pytest.mark.parametrize("base", [0, 200_000])
def test_balancing_moves_trials_off_the_last_gpus(base: float) -> None:
    given = problem(random_trials(7, 20), num_gpus=4, room=250_000, base=base)
    start = min_gpu_plan(given)
    balanced = PackPlan(jobs=balance_jobs(start.jobs, given), num_gpus=4, policy="balanced")
    check_pack_plan(balanced, given)
    assert balanced.makespan_seconds < 0.9 * start.makespan_seconds, "trials that join others share their steps"
    again = balance_jobs(balanced.jobs, given, most_evaluations=0)
    assert max(job.end_seconds for job in again) == pytest.approx(balanced.makespan_seconds)
