"""Predictions of strategies: limits that arithmetic gives, and what is chosen by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.scheduling.cost.hardware import KNOWN_GPUS
from cohort.scheduling.strategy_choice import StrategyOption, StrategyWork, choose_strategy, predict_seconds

H100 = KNOWN_GPUS["H100"]
LARGE = StrategyWork(
    tokens=65_536,
    num_trials=32,
    longest_row=600,
    num_layers=80,
    flops_per_token=4 * 70e9,
    weight_bytes=140e9,
    layer_bytes=1.7e9,
    stream_bytes=16_384,
)
STRATEGIES = ("replicas", "adapter_parallel", "tensor", "pipeline")


def seconds(work: StrategyWork, *, num_gpus: int = 4, divided_layers: int = 80) -> dict[str, float]:
    return {
        strategy: predict_seconds(strategy, work, H100, num_gpus=num_gpus, divided_layers=divided_layers)
        for strategy in STRATEGIES
    }


def test_many_trials_hide_the_copies_and_pay_for_sums_and_filling() -> None:
    found = seconds(LARGE)
    assert found["adapter_parallel"] == found["replicas"] < found["pipeline"] < found["tensor"]
    # filling and draining 4 stages with hundreds of micro-batches
    assert found["pipeline"] < 1.1 * found["replicas"]


def test_one_trial_is_faster_where_all_gpus_work_on_it() -> None:
    found = seconds(replace(LARGE, num_trials=1, tokens=16_384))
    assert found["tensor"] < found["replicas"] / 3
    assert found["pipeline"] < found["replicas"] / 2


def test_small_steps_wait_for_copies_and_for_the_host() -> None:
    small = replace(LARGE, tokens=1024, num_trials=8)
    found = seconds(small)
    # each GPU copies three quarters of 80 layers twice
    assert found["adapter_parallel"] >= 2 * 80 * 1.7e9 * 0.75 / H100.link_bytes_per_second
    assert found["replicas"] < found["adapter_parallel"]
    slow = replace(H100, link_bytes_per_second=1e9)
    assert predict_seconds("tensor", small, slow, num_gpus=4) > found["tensor"]
    assert predict_seconds("pipeline", small, slow, num_gpus=4) > found["pipeline"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_gpus_are_no_slower_for_large_steps(strategy: str) -> None:
    two, eight = (predict_seconds(strategy, LARGE, H100, num_gpus=count, divided_layers=80) for count in (2, 8))
    assert eight < two


def test_the_fastest_that_fits_is_chosen_and_all_are_told() -> None:
    options = [
        StrategyOption(strategy="replicas", seconds=0.1, device_bytes=1, problem="needs 140 GiB"),
        StrategyOption(strategy="adapter_parallel", seconds=2.0, device_bytes=1),
        StrategyOption(strategy="tensor", seconds=1.9, device_bytes=1),
        StrategyOption(strategy="pipeline", seconds=1.7, device_bytes=1),
    ]
    choice = choose_strategy(options)
    assert choice is not None
    assert choice.strategy == "pipeline"
    told = "replicas: needs 140 GiB; adapter_parallel 2 s; tensor 1.9 s; pipeline 1.7 s"
    assert choice.why == f"predicted for a step of all trials: {told}"
    # by less than a tenth is no reason to leave the results of one GPU
    near = choose_strategy(options[:3])
    assert near is not None
    assert near.strategy == "adapter_parallel"
    assert choose_strategy(options[:1]) is None
