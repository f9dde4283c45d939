"""What is left of a run as a packing problem."""

from __future__ import annotations

import pytest

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, LaunchFloor, StepCost
from cohort.scheduling.packing.left_trials import left_trials, left_work
from cohort.scheduling.packing.planner import plan_packs

WORK = AdapterWork(r=8, num_tokens=100.0, num_steps=160)
COST = StepCost(
    fixed_seconds=0.1,
    seconds_per_token=1e-5,
    launches=LaunchFloor(from_tokens=1, tokens_per_pass=100, seconds_per_pass=1.0),
)


@pytest.mark.parametrize(
    ("num_done", "left"), [(0, 160), (1, 160), (5, 160), (10, 150), (151, 10), (159, 10), (160, 10)]
)
def test_steps_that_are_left_are_rounded_up_to_parts_of_the_trial(num_done: int, left: int) -> None:
    assert left_work(WORK, num_done=num_done).num_steps == left


def test_short_trials_count_their_steps() -> None:
    short = AdapterWork(r=8, num_tokens=10.0, num_steps=5)
    assert [left_work(short, num_done=done).num_steps for done in range(5)] == [5, 4, 3, 2, 1]


def test_packs_fit_the_slots_and_the_rank_rows_of_each_executor() -> None:
    requests = [Request(trial_id=i, r=8 if i % 2 else 16, batch_size=1, mean_length=10.0) for i in range(12)]
    capacity = Capacity(rank_rows=48, num_slots=4, tokens_per_step=1e9, num_ranks=2)
    works = {request.trial_id: AdapterWork(r=request.r, num_tokens=10.0, num_steps=20) for request in requests}
    given = left_trials(requests, works=works, capacity=capacity, cost=COST)
    plan = plan_packs(given)
    assert sorted(i for job in plan.jobs for i in job.trial_ids) == list(range(12))
    for job in plan.jobs:
        assert len(job.trial_ids) <= 4
        assert sum(works[i].r for i in job.trial_ids) <= 48
    # a step is mostly its fixed part: full packs, as many on each
    assert len(plan.jobs) == 4
    assert {job.gpu_ids for job in plan.jobs} == {(0,), (1,)}
