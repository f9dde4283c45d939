"""The measurements of several GPUs run on a tiny model, so that their time on GPUs is not lost to a typing error."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.several_gpus.figure13 import measure as measure_figure13
from benchmarks.several_gpus.host_streamed import measure as measure_host_streamed
from benchmarks.several_gpus.links import measure as measure_links
from benchmarks.several_gpus.pipeline import measure as measure_pipeline
from benchmarks.several_gpus.queue import measure as measure_queue


def options(**given: object) -> argparse.Namespace:
    defaults = {
        "tiny": True,
        "gpus": 2,
        "num_layers": None,
        "streamed": None,
        "tokens": None,
        "no_resident": False,
        "shape": "8b",
    }
    return argparse.Namespace(**{**defaults, **given})


def test_host_streamed() -> None:
    part = measure_host_streamed(options(num_layers=4, tokens=[32]))
    assert part.headline["same_bits"] == 1.0
    assert part.headline["host_streamed_70b_share"] > 0
    assert part.notes["fetches_per_step"] == 2


@pytest.mark.slow
def test_figure13() -> None:
    part = measure_figure13(options())
    assert part.headline["losses_agree"] == 1.0
    assert {row["strategy"] for row in part.rows} == {
        "one GPU",
        "replicas",
        "adapter_parallel",
        "tensor",
        "pipeline",
    }


@pytest.mark.slow
def test_pipeline() -> None:
    part = measure_pipeline(options())
    assert 0 < part.headline["pipeline_bubble_ratio"] < 1
    # what the simulator leaves out are transfers and the host
    assert part.headline["window_over_simulated"] >= 1


@pytest.mark.slow
def test_links() -> None:
    part = measure_links(options())
    assert part.headline["right_bytes"] == 1.0
    assert part.headline["layer_pull_ms"] > 0


def test_queue() -> None:
    part = measure_queue(options())
    rows = {(row["tasks"], row["order"]): row for row in part.rows}
    assert len(rows) == len(part.rows) == 2 * 8
    # of three tasks one is longer than the others together: a plan without gangs leaves a GPU idle
    assert part.headline["queue_three_one_gpu_each_over_planned"] > 1.1
    for tasks in ("twelve", "three"):
        planned = rows[tasks, "planned"]["planned_hours"]
        assert all(row["planned_hours"] >= planned * 0.99 for (name, _), row in rows.items() if name == tasks)
        assert rows[tasks, "planned"]["simulated_busy_share"] > 0.5
