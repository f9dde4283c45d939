"""Seconds by hand, and what is labelled analytic."""

from __future__ import annotations

import pytest

from cohort.scheduling.cost.model import (
    AdapterWork,
    CostModel,
    CostSource,
    Interconnect,
    Knee,
    LaunchFloor,
    StepCost,
    derive_cost,
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
    pack = [AdapterWork(r=8, num_tokens=100, sum_squares=1e4), AdapterWork(r=16, num_tokens=300, sum_squares=9e4)]
    by_hand = 1.0 + 2 * 0.1 + 24 * 0.001 + 400 * 0.01 + (800 + 4800) * 1e-5 + 1e5 * 1e-6 + 100 * 0.02
    assert COST.step_seconds(pack) == pytest.approx(by_hand)
    assert COST.step_seconds([]) == 0


def test_a_pack_is_summed_over_phases() -> None:
    short, long = AdapterWork(r=8, num_tokens=100, num_steps=3), AdapterWork(r=8, num_tokens=50, num_steps=10)
    by_hand = 3 * COST.step_seconds([short, long]) + 7 * COST.step_seconds([long])
    assert pack_seconds(COST, [short, long]) == pytest.approx(by_hand)
    assert pack_seconds(COST, []) == 0


def test_what_the_host_launches_takes_at_least_its_launches() -> None:
    floor = LaunchFloor(from_tokens=100, tokens_per_pass=200, seconds_per_pass=3.0, seconds_per_sequence=0.5)
    cost = StepCost(fixed_seconds=1.0, seconds_per_token=0.01, launches=floor)
    assert cost.step_seconds([AdapterWork(r=8, num_tokens=99, num_sequences=1)]) == pytest.approx(1.99)
    assert cost.step_seconds([AdapterWork(r=8, num_tokens=100, num_sequences=2)]) == pytest.approx(4.0)
    assert cost.step_seconds([AdapterWork(r=8, num_tokens=201, num_sequences=2)]) == pytest.approx(7.0)
    assert cost.step_seconds([AdapterWork(r=8, num_tokens=2000, num_sequences=0)]) == pytest.approx(30.0)


def test_wrong_coefficients_are_refused() -> None:
    with pytest.raises(ValueError, match="no coefficient may be negative"):
        StepCost(fixed_seconds=0, seconds_per_token=-1)


def test_several_gpus_are_labelled_analytic() -> None:
    model = CostModel.from_one_gpu(COST, degrees=(1, 2, 4), interconnect=LINK)
    assert model.sources == {1: CostSource.MEASURED, 2: CostSource.ANALYTIC, 4: CostSource.ANALYTIC}
    work = AdapterWork(r=8, num_tokens=1000, num_steps=5)
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
