"""The packing planner against its checker, the exact model and training alone."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.planning.solo_baselines import max_gpu_plan, min_gpu_plan
from cohort.core.errors import InputError
from cohort.scheduling.packing.planner import PackingSettings, plan_packs
from cohort.scheduling.packing.verify import check_pack_plan, packing_lower_bound

from .exact_packing import solve_exactly
from .packing_instances import problem, random_trials, trial


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_plans_hold_and_beat_training_alone(seed: int) -> None:
    given = problem(random_trials(seed, 24), num_gpus=(2, 4, 8)[seed % 3], room=(150_000, 400_000)[seed % 2])
    plan = plan_packs(given, settings=PackingSettings(most_solves=200, most_balancing=2000))
    check_pack_plan(plan, given)
    bound = packing_lower_bound(given)
    assert plan.makespan_seconds >= bound.seconds * (1 - 1e-9)
    assert plan.approximation_ratio >= 1
    for alone in (min_gpu_plan(given), max_gpu_plan(given)):
        check_pack_plan(alone, given)
        assert plan.makespan_seconds <= alone.makespan_seconds


@pytest.mark.parametrize("seed", range(4))
def test_small_instances_against_the_exact_model(seed: int) -> None:
    given = problem(random_trials(seed, 4), num_gpus=2, room=120_000)
    exact = solve_exactly(given)
    assert exact is not None
    assert exact.is_proven
    check_pack_plan(exact.plan, given)
    plan = plan_packs(given)
    check_pack_plan(plan, given)
    bound = packing_lower_bound(given)
    # the model counts in hundred-thousandths, rounded down
    assert bound.seconds <= exact.plan.makespan_seconds * (1 + 1e-4)
    assert exact.plan.makespan_seconds <= plan.makespan_seconds * (1 + 1e-4)
    # with four trials the tail is everything; the planner stays within a quarter of the best
    assert plan.makespan_seconds <= 1.25 * exact.plan.makespan_seconds


def test_the_same_question_has_the_same_answer() -> None:
    given = problem(random_trials(1, 10), num_gpus=2)
    assert plan_packs(given) == plan_packs(given)


def test_many_trials_come_close_to_the_bound() -> None:
    given = problem(random_trials(5, 36), num_gpus=4, fixed=0.02)
    plan = plan_packs(given)
    check_pack_plan(plan, given)
    assert plan.makespan_seconds <= 1.14 * packing_lower_bound(given).seconds


def test_a_base_that_needs_two_gpus_gets_them() -> None:
    given = problem(random_trials(2, 10), num_gpus=4, room=150_000, base=200_000)
    plan = plan_packs(given)
    check_pack_plan(plan, given)
    assert {job.num_gpus for job in plan.jobs} <= {2, 4}
    assert {job.num_gpus for job in min_gpu_plan(given).jobs} == {2}
    assert {job.num_gpus for job in max_gpu_plan(given).jobs} == {4}


def test_what_cannot_be_planned_is_said() -> None:
    trials = [trial(0, r=8, batch_size=1), trial(1, r=64, batch_size=1), trial(2, r=512, batch_size=1)]
    with pytest.raises(InputError) as caught:
        plan_packs(problem(trials, num_gpus=1, room=50_000))
    assert [str(found.where) for found in caught.value.problems] == ["trial 1: r", "trial 2: r"]
    with pytest.raises(InputError, match="leaves no room"):
        plan_packs(problem(trials, num_gpus=2, room=1000, base=1e9))
    with pytest.raises(InputError, match="gpus: found 0"):
        plan_packs(dataclasses.replace(problem(trials), num_gpus=0))
    with pytest.raises(ValueError, match="same id"):
        problem([trials[0], trials[0]])
    assert plan_packs(problem([])).jobs == ()
    with pytest.raises(ValueError, match="at most 6 trials"):
        solve_exactly(problem(random_trials(0, 7)))


def test_the_approximation_ratio_by_hand() -> None:
    given = problem(random_trials(0, 3), num_gpus=2)
    alone = max_gpu_plan(given)
    # every job holds all GPUs until the next starts
    assert alone.approximation_ratio == pytest.approx(1)
    halves = min_gpu_plan(given)
    ends = sorted(job.end_seconds for job in halves.jobs)
    area = sum(job.end_seconds - job.start_seconds for job in halves.jobs)
    assert halves.approximation_ratio == pytest.approx(2 * ends[-1] / area)
