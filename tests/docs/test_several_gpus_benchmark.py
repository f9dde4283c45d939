"""The measurements of several GPUs run on a tiny model, so that their time on GPUs is not lost to a typing error."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import pytest

from benchmarks.kernels import stage_share
from benchmarks.several_gpus.figure13 import measure as measure_figure13
from benchmarks.several_gpus.four_gpus import measure as measure_four_gpus
from benchmarks.several_gpus.host_streamed import measure as measure_host_streamed
from benchmarks.several_gpus.links import measure as measure_links
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.pipeline import measure as measure_pipeline
from benchmarks.several_gpus.queue import LESS_WORK
from benchmarks.several_gpus.queue import measure as measure_queue
from benchmarks.several_gpus.run_tasks import GPUS, PackCosts, search_plan, tasks_of
from benchmarks.several_gpus.run_tasks import measure as measure_run_tasks
from benchmarks.several_gpus.scaling import measure as measure_scaling
from benchmarks.several_gpus.sweep import measure as measure_sweep
from benchmarks.several_gpus.sweep_simulated import measure as measure_sweep_simulated
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan


def options(**given: object) -> argparse.Namespace:
    defaults = {
        "tiny": True,
        "gpus": 2,
        "num_layers": None,
        "streamed": None,
        "tokens": None,
        "no_resident": False,
        "shape": "8b",
        "strategies": None,
        "only_measured": False,
        "launched": False,
        "batches": None,
        "no_peer": False,
        "profile": False,
        "once": False,
        "states_on_host": False,
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
    assert part.headline["choice_regret_worst"] >= 1
    assert part.headline["ap_vs_fsdp_tiny_bs2"] > 1
    assert {row["strategy"] for row in part.rows} == {
        "fsdp in turn",
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


@pytest.mark.slow
def test_scaling() -> None:
    part = measure_scaling(options())
    assert part.headline["same_bits"] == 1.0
    assert [(row["strategy"], row["scaling"]) for row in part.rows] == [
        ("replicas", "one"),
        ("replicas", "weak"),
        ("replicas", "strong"),
        ("adapter_parallel", "weak"),
        ("adapter_parallel", "strong"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["8b", "70b"])
def test_sweep(shape: str) -> None:
    saved: list[Part] = []
    part = measure_sweep(options(shape=shape, save=saved.append))
    assert [row["gpus"] for row in part.rows] == ([2, 1] if shape == "8b" else [2, 2])
    assert len({(row["trained_tokens"], row["saved_share"]) for row in part.rows}) == 1, "one GPU decides as two do"
    assert all(row["price"] > 0 for row in part.rows)
    assert len(saved) == sum(row["gpus"] for row in part.rows), "on two ranks the sweep runs twice"
    detail = part.notes["of_each_sweep"]
    again = detail["replicas, 2 GPUs, again" if shape == "8b" else "adapter_parallel, 2 GPUs, again"]
    assert sum(report["num_tokens"] for report in again["rank_reports"]) == part.rows[0]["trained_tokens"]
    for found in (each for name, each in detail.items() if "2 GPUs" in name):
        assert sum(sum(tokens) for _, tokens, _ in found["windows"]) == part.rows[0]["trained_tokens"]


def test_a_simulated_sweep_trains_the_same_on_any_number_of_ranks() -> None:
    part = measure_sweep_simulated(options())
    assert [row["gpus"] for row in part.rows] == [1, 2, 4, 8]
    assert len({(row["trained_tokens"], row["saved_share"]) for row in part.rows}) == 1
    seconds = [row["seconds"] for row in part.rows]
    assert seconds[1] < seconds[0]


@pytest.mark.slow
def test_run_tasks() -> None:
    part = measure_run_tasks(options())
    planned, other = part.rows
    assert planned["planned_seconds"] <= other["planned_seconds"]
    assert len(planned["spans"]) == len(other["spans"]) == 12


def test_exchanges_find_a_plan_as_good_as_the_solvers() -> None:
    seconds = {1: 0.5, 2: 0.6, 8: 1.2, 32: 4.0}
    costs = PackCosts(fixed=dict.fromkeys(seconds, 0.1), step=seconds)
    requests = [task.request(costs) for task in tasks_of(costs, seconds=400.0)]
    found = search_plan(requests, restarts=3, rounds=150)
    check_plan(found, requests, GPUS)
    solved = plan_placement(requests, GPUS, settings=LESS_WORK)
    assert found.makespan_seconds <= 1.02 * solved.makespan_seconds


@pytest.mark.slow
def test_stage_share(tmp_path: Path) -> None:
    stage_share.main(["--tiny", "--out", str(tmp_path / "share.json")])
    found = json.loads((tmp_path / "share.json").read_text(encoding="utf-8"))
    assert 0 < found["headline"]["pipeline_bubble_ratio_of_measured_shares"] < 1
    assert [(row["stage"], row["capacity"]) for row in found["rows"]] == list(itertools.product(range(4), (128, 64)))
    assert found["headline"]["tokens_per_second_at_64"] > 0


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


def test_four_gpus_are_projected_from_the_results_that_are_there(tmp_path: Path) -> None:
    def wrote(name: str, **result: object) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")

    weak = {"strategy": "adapter_parallel", "scaling": "weak", "gpus": 2, "step_ms": 100.0, "tokens_per_step": 20_000}
    wrote(
        "several_gpus_scaling",
        headline={"scaling_replicas_8b": 1.0, "scaling_ap_8b": 0.9},
        rows=[weak],
        notes={"layers": 16},
    )
    (row,) = measure_four_gpus(options(), results=tmp_path).rows
    # 1.5 times the pulls' slowdown
    assert row["projected"] == pytest.approx(1 / (1 + 1.5 * (1 / 0.9 - 1)))
    # and the copies of own quarters: 28 of them, a quarter of the time of the profile's halves of larger layers each
    kernels = [{"name": "memcpy128", "under_copies_us": 440.0}, {"name": "another"}]
    wrote("several_gpus_profile_70b", rows=[{"strategy": "adapter_parallel", "profile": [{"kernels": kernels}]}])
    (row,) = measure_four_gpus(options(), results=tmp_path).rows
    copied = 28 * 440e-6 / 2 * 0.436 / 1.711
    assert row["projected"] == pytest.approx(1 / (1 + 1.5 * (1 / 0.9 - 1) + copied / 0.1 / 0.9))
    (tmp_path / "several_gpus_profile_70b.json").unlink()
    steps = {
        ("adapter_parallel", 1): 2.0,
        ("fsdp in turn", 1): 7.0,
        ("fsdp in turn", 2): 8.0,
    }
    wrote("several_gpus_links", rows=[{"what": "layer pulled in a replayed graph", "gb_per_second": 300.0}])
    wrote(
        "several_gpus_figure13_70b",
        headline={"ap_vs_fsdp_70b_bs2": 8 / 3},
        rows=[{"strategy": name, "batch": batch, "step_seconds": each} for (name, batch), each in steps.items()],
        notes={"layers": 8, "adapters": 8, "length": 256, "token_budgets": {"adapter_parallel": 1536}},
    )
    (_, row) = measure_four_gpus(options(), results=tmp_path).rows
    # both have the rows of half the batch on two
    assert (row["what"], row["projected"]) == ("ap_vs_fsdp_70b_bs2_4gpu_at_least", 3.5)
    costs = {"fixed": {"1": 0.1, "32": 0.2}, "step": {"1": 0.05, "32": 0.5}}
    headline = {"run_tasks_2gpu_measured_over_planned": 1.1, "run_tasks_2gpu_planned_over_bound": 1.02}
    wrote("several_gpus_run_tasks", headline=headline, notes={"costs_of_packs": costs})
    found = {row["what"]: row["projected"] for row in measure_four_gpus(options(), results=tmp_path).rows}
    assert 1 <= found["run_tasks_4gpu_planned_over_bound"] < 1.3
    assert found["run_tasks_4gpu_first_come_over_planned"] >= 1
    assert found["run_tasks_4gpu_fewest_gpus_over_planned"] > 0
