"""The fit on exact and on noisy steps, from few steps beside a prior, and of steps that wait for the host."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cohort.scheduling.cost.fit import errors_percent, fit_step_cost
from cohort.scheduling.cost.model import AdapterWork, Knee, LaunchFloor, LaunchRegime, StepCost, StepSample

TRUE = StepCost(
    fixed_seconds=0.03,
    seconds_per_token=2e-5,
    seconds_per_adapter=1e-3,
    seconds_per_rank_token=2e-7,
    seconds_per_square=2e-9,
    knees=(Knee(at_tokens=4000, seconds_per_token=3e-5),),
)


def packs(count: int, *, noise: float, seed: int = 1, true: StepCost = TRUE) -> list[StepSample]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        pack = []
        for _ in range(rng.randint(1, 12)):
            lengths = [rng.randint(20, 1000) for _ in range(rng.choice([1, 2, 4]))]
            pack.append(
                AdapterWork(
                    r=rng.choice([8, 16, 32, 64]),
                    num_tokens=sum(lengths),
                    sum_squares=sum(length**2 for length in lengths),
                    num_sequences=len(lengths),
                )
            )
        seconds = true.step_seconds(pack) * (1 + rng.uniform(-noise, noise))
        found.append(StepSample(pack=tuple(pack), seconds=seconds))
    return found


def test_the_fit_is_exact_where_the_model_is() -> None:
    fit = fit_step_cost(packs(80, noise=0), knees=(4000,))
    assert fit.held_out_worst_error_percent < 0.01
    assert (fit.num_fitted, fit.num_held_out) == (60, 20)


def test_the_held_out_error_is_that_of_the_noise() -> None:
    fit = fit_step_cost(packs(160, noise=0.04))
    # uniform noise of 4 % has a median of 2 %; the model adds little to it
    assert 1 < fit.held_out_median_error_percent < 4
    assert fit.held_out_worst_error_percent < 15


def test_a_fit_of_a_different_truth_shows_its_error() -> None:
    told = [StepSample(pack=sample.pack, seconds=1 + index % 5) for index, sample in enumerate(packs(60, noise=0))]
    assert fit_step_cost(told).held_out_median_error_percent > 10


def test_wrong_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="a fit needs 3 steps"):
        fit_step_cost(packs(3, noise=0))
    with pytest.raises(ValueError, match="seconds above 0"):
        fit_step_cost([*packs(8, noise=0), StepSample(pack=(), seconds=1.0)])


def test_one_step_corrects_a_prior_s_scale_and_more_its_shape() -> None:
    prior = StepCost(
        fixed_seconds=0.005,
        seconds_per_token=4e-6,
        seconds_per_rank_token=1e-8,
        knees=(Knee(at_tokens=4000, seconds_per_token=4e-6),),
    )
    unseen = packs(40, noise=0, seed=2)
    before = sorted(errors_percent(prior, unseen))[20]
    medians = [
        sorted(errors_percent(fit_step_cost(packs(count, noise=0.01), prior=prior).cost, unseen))[20]
        for count in (1, 6, 60)
    ]
    assert before > 60
    assert medians[0] < 50
    assert medians[2] < 4
    assert medians == sorted(medians, reverse=True)


def test_steps_that_wait_for_the_host_are_told_from_those_that_compute() -> None:
    floor = LaunchFloor(from_tokens=1500, tokens_per_pass=8000, seconds_per_pass=0.25, seconds_per_sequence=1e-4)
    true = replace(TRUE, launches=floor)
    told, unseen = packs(120, noise=0.01, true=true), packs(40, noise=0, seed=2, true=true)
    regime = LaunchRegime(from_tokens=1500, tokens_per_pass=8000)
    knows = fit_step_cost(told, held_out=unseen, knees=(4000,), launched=regime)
    convex = fit_step_cost(told, held_out=unseen, knees=(4000,))
    assert knows.held_out_median_error_percent < 2
    assert convex.held_out_median_error_percent > 3 * knows.held_out_median_error_percent
    assert convex.cost.launches is None
