"""What would four GPUs show? Arithmetic on what two GPUs have measured.

No GPU is used, and nothing here is a measurement: each row says which result it starts from and by which rule. Two GPUs
read half of a divided layer from each other, four read three quarters, over links that all are equally fast (NVSwitch).

- `scaling`: pulls that hide behind products cost a measured slowdown; it grows with their bytes. Of two ranks each has
  its own part where products read it; one of four copies its quarter within the GPU, at the rate of the profile.
- `figure13`: on four GPUs a rank has the rows that it has on two with half of the batch, and so has FSDP2's. Ours takes
  as long as there and for the copies of its own quarters, as long as its pulls still hide; FSDP2 takes at least as
  long, since its gathers grow.
- `pipeline`: what the simulator says of four stages, and the runtime's share over the simulator's on two.
- `sweep`: the tokens of a sweep of 60 at twice the slowest measured rate of adapter parallelism on two GPUs, against an
  FSDP2 run over the same rows at batch 1. Steps of the last few trials, which fill no GPU, are not in it.
- `sweep` on 8B: what its schedule says of four GPUs, and the measured share of what it says of two.
- `run_tasks`: twelve tasks of degrees 1, 2 and 4 planned by the measured seconds of packs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.run_tasks import PackCosts, best_plan, search_plan, tasks_of
from cohort.scheduling.placement.records import Cluster, PlacementPlan, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, list_plan
from cohort.scheduling.placement.verify import check_plan

__all__ = ["QUESTION", "measure"]

QUESTION = "What would four GPUs show, by arithmetic on what two have measured?"
COLUMNS = ("what", "projected", "measured_on_two", "goal", "from")
FOUR = Cluster.of_one_node(4)
# trials of each task, and the numbers of GPUs it may have
TWELVE = (
    *((count, (1,)) for count in (2, 6, 24)),
    *((count, (2,)) for count in (12, 32)),
    (32, (4,)),
    *((count, (1, 2, 4)) for count in (1, 4, 8, 16, 24, 32)),
)
# of a pass of the scaling part
TOKEN_BUDGET = 16384
# of all tasks together, on one GPU
ALL_SECONDS = 20.0
# of a layer in 16 bits
LAYER_BYTES, LAYER_BYTES_8B = 1.711e9, 0.436e9
# layers that a pass finds in their buffers
HELD_LAYERS = 2


def measure(options: argparse.Namespace, *, results: Path = RESULTS) -> Part:
    rows = [
        row
        for rule in (_scaling, _figure13, _pipeline, _sweep, _sweep_8b, _run_tasks)
        for row in rule(_Results(results), is_tiny=options.tiny)
    ]
    headline = {f"{row['what']}_projected": row["projected"] for row in rows}
    return Part(headline=headline, rows=rows, columns=COLUMNS, notes={"gpus": "none: projected for four"})


class _Results:
    """Results in a folder, by the ends of their names; None for those that are not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def _row(what: str, projected: float, *, two: float | None, goal: str, source: str) -> dict[str, Any]:
    return {"what": what, "projected": projected, "measured_on_two": two, "goal": goal, "from": source}


def _scaling(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    del is_tiny
    if (found := results.read("several_gpus_scaling")) is None:
        return
    replicas, divided = (found["headline"][f"scaling_{name}_8b"] for name in ("replicas", "ap"))
    pulls = 1 / divided - 1 / replicas
    row = next(row for row in found["rows"] if row["strategy"] == "adapter_parallel" and row["scaling"] == "weak")
    passes = math.ceil(row["tokens_per_step"] / row["gpus"] / TOKEN_BUDGET)
    copied = passes * _own_copies(results, layers=found["notes"]["layers"], layer_bytes=LAYER_BYTES_8B)
    # three quarters of the bytes instead of a half
    share = 1 / (1 / replicas + 1.5 * pulls + copied / (row["step_ms"] / 1e3) / divided)
    yield _row("scaling_ap_8b_4gpu", share, two=divided, goal=">= 0.90", source="several_gpus_scaling")


def _own_copies(results: _Results, *, layers: int, layer_bytes: float) -> float:
    """Return the seconds in which a rank of four copies its own quarters of layers in a training pass."""
    profile = results.read("several_gpus_profile_70b")
    if profile is None:
        return 0.0
    rows = [row for row in profile["rows"] if row["strategy"] == "adapter_parallel"]
    kernels = [kernel for row in rows for kernel in row["profile"][0]["kernels"] if kernel["name"] == "memcpy128"]
    # halves of 70B layers
    slowest: float = max(kernel["under_copies_us"] for kernel in kernels) / 1e6
    return 2 * (layers - HELD_LAYERS) * (layer_bytes / 4) / (LAYER_BYTES / 2) * slowest


def _figure13(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    del is_tiny
    found, links = results.read("several_gpus_figure13_70b"), results.read("several_gpus_links")
    if found is None or links is None:
        return
    rows = {(row["strategy"], row["batch"]): row for row in found["rows"]}
    layers = found["notes"]["layers"]
    # training pulls all but the buffers' layers twice in a pass
    replayed = [row for row in links["rows"] if "replayed" in row["what"]]
    rate = max(row["gb_per_second"] for row in replayed or links["rows"] if "gb_per_second" in row) * 1e9
    pulled = 2 * (layers - HELD_LAYERS) * LAYER_BYTES * 0.75 / rate
    for batch in (2, 4, 8):
        half, peer = (rows.get((strategy, batch // 2)) for strategy in ("adapter_parallel", "fsdp in turn"))
        if half is None or peer is None:
            continue
        tokens = found["notes"]["adapters"] * batch * found["notes"]["length"] / 4
        passes = math.ceil(tokens / found["notes"]["token_budgets"]["adapter_parallel"])
        copied = _own_copies(results, layers=layers, layer_bytes=LAYER_BYTES)
        ours = max(half["step_seconds"] + passes * copied, passes * pulled)
        yield _row(
            f"ap_vs_fsdp_70b_bs{batch}_4gpu_at_least",
            peer["step_seconds"] / ours,
            two=found["headline"][f"ap_vs_fsdp_70b_bs{batch}"],
            goal=">= 4.7" if batch == 2 else "",
            source="several_gpus_figure13_70b, several_gpus_links",
        )


def _pipeline(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    del is_tiny
    simulated, runtime = results.read("several_gpus_pipeline_simulated"), results.read("several_gpus_pipeline")
    if simulated is None or runtime is None:
        return
    # windows as long as those that were run
    steps = runtime["rows"][-1]["steps"]
    idle = min(row["bubble_ratio_shared_head"] for row in simulated["rows"] if row["steps"] == steps)
    slower = runtime["headline"]["window_over_simulated"]
    yield _row(
        "pipeline_bubble_ratio_4gpu",
        1 - (1 - idle) / slower,
        two=runtime["headline"]["pipeline_bubble_ratio"],
        goal="<= 0.08",
        source="several_gpus_pipeline_simulated, several_gpus_pipeline",
    )


def _sweep(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    del is_tiny
    sweep, found = results.read("several_gpus_sweep_8b"), results.read("several_gpus_figure13_70b")
    if sweep is None or found is None:
        return
    # an evaluation is a third of a training pass
    tokens = sweep["rows"][0]["trained_tokens"] + sweep["rows"][0]["evaluated_tokens"] / 3
    rate = min(row["tokens_per_second"] for row in found["rows"] if row["strategy"] == "adapter_parallel")
    # one row a step: more GPUs make no step of FSDP2 faster
    step = min(row["adapter_seconds"] for row in found["rows"] if row["strategy"] == "fsdp in turn")
    measured = results.read("several_gpus_sweep_70b")
    yield _row(
        "sweep_price_70b_4gpu_of_full_passes",
        tokens / (2 * rate) / (sweep["notes"]["rows"] * step),
        two=None if measured is None else measured["headline"]["sweep_price_70b_2gpu_adapter_parallel"],
        goal="printed",
        source="several_gpus_sweep_8b, several_gpus_figure13_70b",
    )


def _sweep_8b(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    del is_tiny
    sweep, simulated = results.read("several_gpus_sweep_8b"), results.read("several_gpus_sweep_simulated")
    if sweep is None or simulated is None:
        return
    two = sweep["headline"]["sweep_8b_2gpu_times_one_gpu"]
    by_schedule = {row["gpus"]: row["times_one"] for row in simulated["rows"]}
    yield _row(
        "sweep_8b_4gpu_times_one_gpu",
        by_schedule[4] * two / by_schedule[2],
        two=two,
        goal="printed",
        source="several_gpus_sweep_8b, several_gpus_sweep_simulated",
    )


def _run_tasks(results: _Results, *, is_tiny: bool) -> Iterator[dict[str, Any]]:
    if (found := results.read("several_gpus_run_tasks")) is None:
        return
    costs = PackCosts(**{name: _by_number(own) for name, own in found["notes"]["costs_of_packs"].items()})
    tasks = tasks_of(costs, TWELVE, seconds=2 * ALL_SECONDS)
    requests = [task.request(costs) for task in tasks]

    def planned(tasks: list[TaskRequest]) -> PlacementPlan:
        return search_plan(tasks, FOUR, restarts=1, rounds=40) if is_tiny else best_plan(tasks, FOUR)

    plan = planned(requests)
    check_plan(plan, requests, FOUR)
    source, late = "several_gpus_run_tasks", found["headline"]["run_tasks_2gpu_measured_over_planned"]
    yield _row(
        "run_tasks_4gpu_planned_over_bound",
        plan.makespan_seconds / max(plan.lower_bound_seconds, 1e-9),
        two=found["headline"]["run_tasks_2gpu_planned_over_bound"],
        goal="near 1",
        source=source,
    )
    yield _row("run_tasks_4gpu_seconds", plan.makespan_seconds * late, two=None, goal="printed", source=source)
    for policy in (ListPolicy.FIRST_COME, ListPolicy.LONGEST_FIRST, ListPolicy.SHORTEST_FIRST):
        other = list_plan(requests, FOUR, policy=policy).makespan_seconds
        name = policy.value.replace(" ", "_")
        two = found["headline"].get(f"run_tasks_2gpu_{name}_over_planned")
        what = f"run_tasks_4gpu_{name}_over_planned"
        yield _row(what, other / plan.makespan_seconds, two=two, goal="> 1", source=source)
    alone = [replace(each, options=(min(each.options, key=lambda option: option.num_gpus),)) for each in requests]
    fewest = planned(alone)
    yield _row(
        "run_tasks_4gpu_fewest_gpus_over_planned",
        fewest.makespan_seconds / plan.makespan_seconds,
        two=found["headline"].get("run_tasks_2gpu_one_GPU_over_planned"),
        goal=">= 1",
        source=source,
    )


def _by_number(own: Mapping[str, float]) -> dict[int, float]:
    return {int(count): seconds for count, seconds in own.items()}
