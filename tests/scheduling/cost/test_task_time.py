from collections.abc import Sequence
from dataclasses import replace

import pytest

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import EvaluationWork, TrainingTime, evaluation_seconds, training_time

COST = StepCost(fixed_seconds=1.0, seconds_per_token=0.1)


def trial(trial_id: int, *, steps: int, batch_size: int = 1) -> tuple[Request, AdapterWork]:
    request = Request(trial_id=trial_id, r=16, batch_size=batch_size, mean_length=10.0)
    return request, AdapterWork(r=16, num_tokens=10.0 * batch_size, num_steps=steps)


def time_of(trials: Sequence[tuple[Request, AdapterWork]], *, room: Capacity) -> TrainingTime:
    works = {request.trial_id: work for request, work in trials}
    return training_time([request for request, _ in trials], works=works, capacity=room, cost=COST)


def capacity(num_slots: int) -> Capacity:
    return Capacity(rank_rows=16 * num_slots, num_slots=num_slots, tokens_per_step=1e6)


def test_residents_step_together_and_pay_the_fixed_part_once() -> None:
    both = [trial(0, steps=3), trial(1, steps=5)]
    # three steps of two trials, two of one
    assert time_of(both, room=capacity(2)).seconds == pytest.approx(3 * 3.0 + 2 * 2.0)
    # one after the other
    assert time_of(both, room=capacity(1)).seconds == pytest.approx(8 * 2.0)


def test_the_busiest_rank_decides_how_long_a_step_takes() -> None:
    """Two ranks of one slot each: trials of 3 and 5 steps side by side, then one of 4 where the first has ended."""
    three = [trial(0, steps=3), trial(1, steps=5), trial(2, steps=4)]
    two_ranks = replace(capacity(1), num_ranks=2)
    time = time_of(three, room=two_ranks)
    # 3 steps together, 2 more, and 2 of the third alone: each costs what one trial costs
    assert time.num_steps == 7
    assert time.seconds == pytest.approx(7 * 2.0)
    # a trial of twice the tokens on one of the ranks
    uneven = [trial(0, steps=3), trial(1, steps=3, batch_size=2)]
    alone = time_of(uneven[1:], room=capacity(1))
    assert time_of(uneven, room=two_ranks).seconds == pytest.approx(alone.seconds)


def test_who_leaves_makes_room_for_who_waits() -> None:
    three = [trial(0, steps=2), trial(1, steps=4), trial(2, steps=2)]
    # 0 and 1, then 1 and 2
    time = time_of(three, room=capacity(2))
    assert time.seconds == pytest.approx(4 * 3.0)
    assert time.num_steps == 4


def test_a_long_queue_is_timed_quickly_and_in_full() -> None:
    many = [trial(number, steps=1 + number % 7, batch_size=1 << number % 3) for number in range(400)]
    alone = sum(work.num_steps * COST.step_seconds([work]) for _, work in many)
    packed = time_of(many, room=capacity(16)).seconds
    tokens = sum(work.num_steps * work.num_tokens for _, work in many)
    assert 0.1 * tokens < packed < alone


def test_evaluations_cost_half_a_training_token_and_are_cut_into_passes() -> None:
    evaluations = {0: EvaluationWork(num_evaluations=4, num_tokens=30.0, num_sequences=3)}
    works = {0: AdapterWork(r=8, num_tokens=1.0)}
    whole = evaluation_seconds(evaluations, works=works, cost=COST, token_budget=100)
    cut = evaluation_seconds(evaluations, works=works, cost=COST, token_budget=10)
    assert whole == pytest.approx(4 * 0.5 * (1 + 3.0))
    assert cut == pytest.approx(4 * 3 * 0.5 * (1 + 1.0))
