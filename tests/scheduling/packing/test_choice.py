"""A plan is followed where the task asks for it, or where it is predicted to end at least 2 % sooner."""

from __future__ import annotations

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import training_time
from cohort.scheduling.packing.choice import LEAST_GAIN, Packing, choose_packing

# steps of small and large batches cost alike: who steps how often is all that counts
COST = StepCost(fixed_seconds=0.5, seconds_per_token=1e-4)
CAPACITY = Capacity(rank_rows=64, num_slots=4, tokens_per_step=1e9, num_ranks=2)


def given(*batch_sizes: int, seconds: float = 1.0) -> tuple[list[Request], dict[int, AdapterWork]]:
    requests = [Request(trial_id=i, r=8, batch_size=b, mean_length=10.0) for i, b in enumerate(batch_sizes)]
    works = {
        i: AdapterWork(r=8, num_tokens=10.0 * b, num_steps=round(seconds * 64 / b)) for i, b in enumerate(batch_sizes)
    }
    return requests, works


def test_refill_plans_nothing() -> None:
    requests, works = given(1, 2)
    chosen = choose_packing(requests, works=works, capacity=CAPACITY, cost=COST, wanted=Packing.REFILL)
    assert chosen.plan is None
    assert chosen.refill_seconds is None


def test_short_training_is_not_planned_unless_asked() -> None:
    requests, works = given(1, 2, seconds=0.1)
    chosen = choose_packing(requests, works=works, capacity=CAPACITY, cost=COST, wanted=Packing.AUTO)
    assert chosen.plan is None
    assert "too short to plan" in chosen.reason
    asked = choose_packing(requests, works=works, capacity=CAPACITY, cost=COST, wanted=Packing.PLANNED)
    assert asked.plan is not None


def test_auto_follows_a_plan_that_ends_sooner() -> None:
    # refilled slots take large batches first: the long trials of small ones begin when those have ended
    requests, works = given(*[1] * 4, *[8] * 8, seconds=4)
    chosen = choose_packing(requests, works=works, capacity=CAPACITY, cost=COST, wanted=Packing.AUTO)
    refill = training_time(requests, works=works, capacity=CAPACITY, cost=COST).seconds
    assert chosen.refill_seconds == refill
    assert chosen.planned_seconds is not None
    assert chosen.planned_seconds < (1 - LEAST_GAIN) * refill
    assert chosen.plan is not None
    assert "refilled slots after" in chosen.reason


def test_auto_refills_where_a_plan_gains_nothing() -> None:
    requests, works = given(*[2] * 8, seconds=4)
    chosen = choose_packing(requests, works=works, capacity=CAPACITY, cost=COST, wanted=Packing.AUTO)
    assert chosen.plan is None
    assert chosen.planned_seconds is not None
