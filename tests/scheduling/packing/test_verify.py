"""The checker of pack plans finds every kind of fault, and its bound."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.planning.solo_baselines import min_gpu_plan
from cohort.scheduling.packing.records import PackPlan
from cohort.scheduling.packing.verify import check_pack_plan, find_pack_faults, packing_lower_bound
from cohort.scheduling.placement.verify import PlanError

from .packing_instances import problem, random_trials, trial


def changed(plan: PackPlan, **changes: Any) -> PackPlan:
    return dataclasses.replace(plan, jobs=(dataclasses.replace(plan.jobs[0], **changes), *plan.jobs[1:]))


def test_the_checker_finds_each_fault() -> None:
    given = problem(random_trials(4, 12), num_gpus=2, room=150_000)
    plan = min_gpu_plan(given)
    assert find_pack_faults(plan, given) == ()
    first = plan.jobs[0]
    for wrong, words in [
        (changed(plan, trial_ids=()), "are in no pack"),
        (changed(plan, trial_ids=(*first.trial_ids, 99)), "unknown or in several"),
        (changed(plan, gpu_ids=(7,)), "not GPUs 0 to 1"),
        (changed(plan, gpu_ids=(0, 1, 2)), "allowed are"),
        (changed(plan, end_seconds=first.end_seconds / 2), "is planned from"),
        (changed(plan, gpu_ids=(1 - first.gpu_ids[0],)), "held twice"),
    ]:
        with pytest.raises(PlanError, match=words):
            check_pack_plan(wrong, given)
    merged = tuple(sorted(trial_id for job in plan.jobs for trial_id in job.trial_ids))
    seconds = given.seconds(given.trials, num_gpus=1)
    one = dataclasses.replace(first, trial_ids=merged, end_seconds=seconds)
    assert any(
        "does not fit in the memory" in fault
        for fault in find_pack_faults(PackPlan(jobs=(one,), num_gpus=2, policy="by hand"), given)
    )


def test_the_bound_of_one_trial_is_its_fastest_degree() -> None:
    given = problem([trial(0, r=8, batch_size=4)], num_gpus=4)
    bound = packing_lower_bound(given)
    assert bound.longest_seconds == pytest.approx(min(given.seconds(given.trials, num_gpus=d) for d in (1, 2, 4)))
    assert bound.is_tight
    assert bound.seconds == bound.longest_seconds
