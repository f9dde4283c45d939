"""Seconds by hand, the fit on exact and on noisy steps, and what is labelled analytic."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.cost_model import (
    CostModel,
    CostSource,
    Interconnect,
    Knee,
    StepCost,
    StepSample,
    TrialWork,
    derive_cost,
    fit_step_cost,
    pack_seconds,
)

COST = StepCost(
    fixed_seconds=1.0,
    seconds_per_token=0.01,
    seconds_per_adapter=0.1,
    seconds_per_rank_row=0.001,
    seconds_per_rank_token=1e-5,
    seconds_per_square=1e-6,
    knees=(Knee(at_tokens=300, seconds_per_token=0.02),),
)
LINK = Interconnect(bytes_per_second=1e9, seconds_per_collective=1e-3, collectives_per_step=10, bytes_per_token=1e3)


def test_a_step_by_hand() -> None:
    pack = [TrialWork(r=8, num_tokens=100, sum_squares=1e4), TrialWork(r=16, num_tokens=300, sum_squares=9e4)]
    by_hand = 1.0 + 2 * 0.1 + 24 * 0.001 + 400 * 0.01 + (800 + 4800) * 1e-5 + 1e5 * 1e-6 + 100 * 0.02
    assert COST.step_seconds(pack) == pytest.approx(by_hand)
    assert COST.step_seconds([]) == 0


def test_a_pack_is_summed_over_phases() -> None:
    short, long = TrialWork(r=8, num_tokens=100, num_steps=3), TrialWork(r=8, num_tokens=50, num_steps=10)
    by_hand = 3 * COST.step_seconds([short, long]) + 7 * COST.step_seconds([long])
    assert pack_seconds(COST, [short, long]) == pytest.approx(by_hand)
    assert pack_seconds(COST, []) == 0


def packs(count: int, *, noise: float, seed: int = 1) -> list[StepSample]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        pack = []
        for _ in range(rng.randint(1, 12)):
            lengths = [rng.randint(20, 1000) for _ in range(rng.choice([1, 2, 4]))]
            pack.append(
                TrialWork(
                    r=rng.choice([8, 16, 32, 64]),
                    num_tokens=sum(lengths),
                    sum_squares=sum(length**2 for length in lengths),
                )
            )
        true = StepCost(
            fixed_seconds=0.03,
            seconds_per_token=2e-5,
            seconds_per_adapter=1e-3,
            seconds_per_rank_token=2e-7,
            seconds_per_square=2e-9,
            knees=(Knee(at_tokens=4000, seconds_per_token=3e-5),),
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
    with pytest.raises(ValueError, match="no coefficient may be negative"):
        StepCost(fixed_seconds=0, seconds_per_token=-1)


def test_several_gpus_are_labelled_analytic() -> None:
    model = CostModel.from_one_gpu(COST, degrees=(1, 2, 4), interconnect=LINK)
    assert model.sources == {1: CostSource.MEASURED, 2: CostSource.ANALYTIC, 4: CostSource.ANALYTIC}
    work = TrialWork(r=8, num_tokens=1000, num_steps=5)
    assert model.seconds([work], num_gpus=1) == pytest.approx(pack_seconds(COST, [work]))
    with pytest.raises(KeyError):
        model.seconds([work], num_gpus=8)
    with pytest.raises(ValueError, match="same numbers of GPUs"):
        CostModel(by_num_gpus={1: COST}, sources={})


def test_several_gpus_divide_work_and_pay_for_collectives() -> None:
    two = derive_cost(COST, num_gpus=2, interconnect=LINK)
    assert two.fixed_seconds == pytest.approx(1.0 + 10 * 1e-3)
    assert two.seconds_per_token == pytest.approx(0.005 + 10 * 1e3 / 1e9)
    assert two.knees[0].seconds_per_token == pytest.approx(0.01)
    assert derive_cost(COST, num_gpus=1, interconnect=LINK) is COST
