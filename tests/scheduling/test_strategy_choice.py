"""Predictions of strategies: limits that arithmetic gives, and what is chosen by them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# 8 layers of the 70B shape with a tenth of its vocabulary, 8 adapters of rank 16 on all linears, rows of 256 tokens
FIGURE_13 = StrategyWork(
    tokens=2048,
    num_trials=8,
    longest_row=256,
    num_layers=8,
    flops_per_token=27.59e9,
    weight_bytes=14.11e9,
    layer_bytes=1.711e9,
    stream_bytes=16_384,
    rank_rows=128,
    token_rows=16,
    divided_entries=835_584,
    whole_entries=458_752,
)
STRATEGIES = ("replicas", "adapter_parallel", "tensor", "pipeline")


def seconds(work: StrategyWork, *, num_gpus: int = 4, divided_layers: int = 80) -> dict[str, float]:
    return {
        strategy: predict_seconds(strategy, work, H100, num_gpus=num_gpus, divided_layers=divided_layers)
        for strategy in STRATEGIES
    }


def test_many_trials_hide_the_copies_and_pay_for_sums_and_filling() -> None:
    found = seconds(LARGE)
    assert found["replicas"] < min(found["adapter_parallel"], found["pipeline"])
    assert max(found["adapter_parallel"], found["pipeline"]) < found["tensor"]
    # each of 8 passes pulls 156 layers, and copies its own quarter of each
    assert found["adapter_parallel"] < 1.15 * found["replicas"]
    # filling and draining 4 stages with hundreds of micro-batches
    assert found["pipeline"] < 1.1 * found["replicas"]


def test_one_trial_is_faster_where_all_gpus_work_on_it() -> None:
    found = seconds(replace(LARGE, num_trials=1, tokens=16_384))
    assert found["tensor"] < found["replicas"] / 2.5
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
        StrategyOption(strategy="tensor", seconds=1.92, device_bytes=1),
        StrategyOption(strategy="pipeline", seconds=1.7, device_bytes=1),
    ]
    choice = choose_strategy(options)
    assert choice is not None
    assert choice.strategy == "pipeline"
    told = "replicas: needs 140 GiB; adapter_parallel 2 s; tensor 1.9 s; pipeline 1.7 s"
    assert choice.why == f"predicted for a step of all trials: {told}"
    # by less than a twentieth is no reason to leave the results of one GPU
    near = choose_strategy(options[:3])
    assert near is not None
    assert near.strategy == "adapter_parallel"
    assert choose_strategy(options[:1]) is None


def figure_13(strategy: str, *, batch: int) -> float:
    tokens = 2560 if strategy == "tensor" else 1536
    work = replace(FIGURE_13, tokens=batch * FIGURE_13.tokens, pass_tokens=tokens)
    return predict_seconds(strategy, work, KNOWN_GPUS["H200"], num_gpus=2, divided_layers=8)


def measured_13() -> dict[int, dict[str, float]]:
    """Return the seconds of a step of all, as two GPUs took them: by batch and strategy.

    Small batches of the pipeline were timed again, next to adapter parallelism, once many adapters passed it together.
    """
    by_batch: dict[int, dict[str, float]] = {}
    for name in ("several_gpus_figure13_70b", "several_gpus_figure13_70b_pipeline"):
        found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for row in found["rows"]:
            if row["strategy"] in STRATEGIES:
                by_batch.setdefault(row["batch"], {})[row["strategy"]] = row["step_seconds"]
    return by_batch


def test_predictions_are_near_what_two_gpus_took() -> None:
    found = measured_13()
    assert {len(of_batch) for of_batch in found.values()} == {3}
    for batch, of_batch in found.items():
        for strategy, seconds in of_batch.items():
            assert figure_13(strategy, batch=batch) == pytest.approx(seconds, rel=0.1), (strategy, batch)


def test_what_is_chosen_is_nearly_the_fastest_that_two_gpus_took() -> None:
    for batch, of_batch in measured_13().items():
        options = [
            StrategyOption(strategy=strategy, seconds=figure_13(strategy, batch=batch), device_bytes=0)
            for strategy in of_batch
        ]
        choice = choose_strategy(options)
        assert choice is not None
        assert of_batch[choice.strategy] <= 1.05 * min(of_batch.values()), batch


def test_copies_lengthen_only_visits_that_are_shorter() -> None:
    # 1,024 tokens a rank hide a layer's half but for a little, 256 do not: 12 of 16 visits wait for it
    assert figure_13("adapter_parallel", batch=1) == pytest.approx(figure_13("replicas", batch=1), rel=0.07)
    assert figure_13("adapter_parallel", batch=1) > figure_13("replicas", batch=1)
    few = replace(FIGURE_13, tokens=512)
    divided, whole = (
        predict_seconds(strategy, few, KNOWN_GPUS["H200"], num_gpus=2, divided_layers=8)
        for strategy in ("adapter_parallel", "replicas")
    )
    pull = FIGURE_13.layer_bytes / 2 / (0.8 * 450e9)
    assert 12 * pull < divided < 12 * pull + whole
    # one layer more than are held is copied once forward and once backward
    three = predict_seconds("adapter_parallel", few, KNOWN_GPUS["H200"], num_gpus=2, divided_layers=3)
    assert whole < three < divided
    assert predict_seconds("adapter_parallel", few, KNOWN_GPUS["H200"], num_gpus=2, divided_layers=2) == whole


def test_shards_have_whole_factors_for_all_tokens() -> None:
    # of adapters that are mostly whole on each shard, two GPUs save little
    plain = replace(FIGURE_13, token_rows=0, rank_rows=0)
    wide = replace(FIGURE_13, token_rows=64)
    of = {
        strategy: predict_seconds(strategy, wide, KNOWN_GPUS["H200"], num_gpus=2)
        - predict_seconds(strategy, replace(plain, rank_rows=wide.rank_rows), KNOWN_GPUS["H200"], num_gpus=2)
        for strategy in ("replicas", "tensor", "pipeline")
    }
    assert of["tensor"] == pytest.approx(2 * (458_752 + 835_584 / 2) / (458_752 + 835_584) * of["replicas"])
    assert of["pipeline"] < of["tensor"]


def test_every_rank_updates_its_part_of_the_adapters() -> None:
    none = replace(FIGURE_13, rank_rows=0)
    of = {
        strategy: figure_13(strategy, batch=1) - predict_seconds(strategy, none, KNOWN_GPUS["H200"], num_gpus=2)
        for strategy in ("replicas", "tensor", "pipeline")
    }
    assert of["replicas"] == pytest.approx(of["pipeline"], rel=1e-6)
    assert of["replicas"] < of["tensor"] < 2 * of["replicas"]
    # a trial alone is on one rank
    alone = [replace(work, num_trials=1) for work in (FIGURE_13, none)]
    one, nothing = (predict_seconds("replicas", work, KNOWN_GPUS["H200"], num_gpus=2) for work in alone)
    assert one - nothing == pytest.approx(2 * of["replicas"])
