"""Tasks in one executor: as long as alone where there is one, and never longer together than one after the other."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, Knee, StepCost
from cohort.scheduling.cost.shared_time import SharedWork, shared_time, works_after
from cohort.scheduling.cost.task_time import training_time
from tests.scheduling.placement.placement_instances import small_work


def random_work(seed: int) -> SharedWork:
    rng = random.Random(seed)
    requests, works = [], {}
    for trial_id in range(rng.randint(1, 12)):
        r, batch_size = rng.choice([16, 32, 64]), rng.choice([1, 2, 4, 8])
        length = 150.0
        works[trial_id] = AdapterWork(r=r, num_tokens=batch_size * length, num_steps=320 // batch_size)
        requests.append(Request(trial_id=trial_id, r=r, batch_size=batch_size, mean_length=length))
    return SharedWork(
        key="one base",
        requests=tuple(requests),
        works=works,
        capacity=Capacity(rank_rows=256, num_slots=8, tokens_per_step=2048.0),
        cost=StepCost(
            fixed_seconds=0.04, seconds_per_token=1e-6, knees=(Knee(at_tokens=700.0, seconds_per_token=5e-5),)
        ),
        other_seconds=rng.uniform(0, 5),
        start_seconds=20.0,
    )


@pytest.mark.parametrize("seed", range(8))
def test_together_is_no_longer_than_one_after_the_other(seed: int) -> None:
    first, second = random_work(seed), random_work(seed + 100)
    alone = training_time(first.requests, works=first.works, capacity=first.capacity, cost=first.cost).seconds
    assert shared_time([first]).seconds == pytest.approx(alone + first.other_seconds)
    together = shared_time([first, second])
    apart = shared_time([first]).seconds + shared_time([second]).seconds
    # greedy admission may keep a slot for a trial of the wrong size, but never costs much
    assert together.seconds <= apart * 1.02
    assert together.ends[0] >= shared_time([first]).ends[0] * 0.999


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_takes_the_rest_of_the_time(seed: int) -> None:
    works = (random_work(seed), random_work(seed + 50))
    whole = shared_time(works).seconds
    left = works_after(works, whole / 2)
    assert shared_time([work for work in left if work.requests]).seconds == pytest.approx(whole / 2, rel=0.1)
    assert not any(work.requests for work in works_after(works, 2 * whole))


def test_room_begins_when_nothing_waits_and_a_quarter_is_free() -> None:
    # nine trials of 100 tokens fill a step of 1,000; one of them trains twice as long
    work = small_work(seconds=10.0, num_trials=9)
    long = {**work.works, 0: replace(work.works[0], num_steps=200)}
    assert shared_time([replace(work, works=long)]).room_from == pytest.approx(10.0)
    assert shared_time([small_work(num_trials=2)]).room_from == 0.0
    # more than fit: the last ones have room
    assert shared_time([small_work(num_trials=12)]).room_from == pytest.approx(10.0)
    assert shared_time([small_work(num_trials=10)]).room_from is None


def test_a_bank_holds_every_adapter_or_none() -> None:
    work = small_work()
    assert work.fits(Capacity(rank_rows=16, num_slots=1, tokens_per_step=1.0))
    assert not work.fits(Capacity(rank_rows=8, num_slots=1, tokens_per_step=1.0))
    assert work.shortened(0.5).works[0].num_steps == 50
