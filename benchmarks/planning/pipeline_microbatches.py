"""How long do the stages of a pipeline idle with greedy windows, with integer programs, and with merging?

An 8B model in four stages that share the loss head, with adapters on GSM8K's row lengths, times 1, 2, 4 and 6 with
batches of 16, 16, 8 and 8, and eight adapters of unequal batch and length. Windows are packed in each adapter's order,
as a CPU needs it, and without an order, as on a GPU: greedily (runs of samples, or equally long micro-batches), first
fit with merging, LoRAFusion's two programs (fewest micro-batches, emptiest last one) without and with merging, the
programs that make the longest one short, and what a run takes, which is the best of these by the simulator. They run
through the simulator with seconds that stage_share.py measured on the stages of an H200: a line through the passes of
two sizes. Padding is counted as LoRAFusion's kernels would need it, each adapter's tokens to multiples of 64.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import gsm8k_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from cohort.scheduling.pipelines.microbatch.choose_micro_batches import MicroBatchSettings, schedule_micro_batches
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import (
    AdapterBatches,
    MicroBatch,
    find_schedule_faults,
    padded_tokens,
    with_no_ops,
)
from cohort.scheduling.pipelines.pipeline_schedule import batch_distance
from cohort.scheduling.pipelines.simulation import PipelineTimes, simulate_pipeline
from cohort.scheduling.pipelines.solver_process import LIMITS
from cohort.scheduling.pipelines.window_packing import StageShares, WindowQuestion, greedy_schedule, solved_schedule

QUESTION = "How long do the stages of a pipeline idle with greedy windows, integer programs, and merging?"
NUM_STAGES, CAPACITY, STEPS, PADDING = 4, 2750, 8, 64
TIMES, BATCH_SIZES = (1, 2, 4, 6), (16, 16, 8, 8)
UNEQUAL_TIMES, UNEQUAL_BATCHES = (1, 1, 2, 3, 4, 6, 6, 8), (32, 4, 16, 2, 8, 2, 4, 2)
# micro-batches of the two sizes that were measured, and the head's share of a stage
STAGES = StageShares(layers=(8, 8, 8, 8), head_layers=1.4, head_shares=(0.25,) * 4)


def adapters(kind: str, *, seed: int) -> tuple[AdapterBatches, ...]:
    rng, lengths = random.Random(seed), [sum(pair) for pair in gsm8k_lengths()]
    times, sizes = (TIMES, BATCH_SIZES) if kind == "gsm8k" else (UNEQUAL_TIMES, UNEQUAL_BATCHES)
    return tuple(
        AdapterBatches(
            adapter=number,
            lengths=tuple(tuple(min(CAPACITY, scale * rng.choice(lengths)) for _ in range(size)) for _ in range(STEPS)),
        )
        for number, (scale, size) in enumerate(zip(times, sizes, strict=True))
    )


def pass_lines() -> dict[str, tuple[float, float]]:
    """Return fixed seconds and seconds a token of a forward, backward and head pass of a stage, as measured."""
    rows = json.loads((RESULTS / "stage_share.json").read_text(encoding="utf-8"))["rows"]
    found = {}
    total = sum(sum(batch) for adapter in adapters("gsm8k", seed=0) for batch in adapter.lengths) * 12 / STEPS
    for name in ("forward_ms", "backward_ms", "head_ms"):
        points = []
        for capacity in (2750, 4096):
            own = [row for row in rows if row["capacity"] == capacity]
            tokens = total / own[0]["micro_batches"]
            points.append((tokens, sum(row[name] for row in own) / len(own) / 1e3))
        (few, low), (many, high) = sorted(points)
        slope = (high - low) / (many - few)
        found[name] = (max(0.0, low - slope * few), slope)
    return found


def simulated(schedule: Sequence[MicroBatch], lines: dict[str, tuple[float, float]]) -> PipelineTimes:
    def seconds(name: str) -> list[list[float]]:
        fixed, slope = lines[name]
        own = [fixed + slope * each.tokens(1) if each.samples else 0.0 for each in schedule]
        return [own for _ in range(NUM_STAGES)]

    return simulate_pipeline(
        seconds("forward_ms"), seconds("backward_ms"), head_seconds=seconds("head_ms"), transfer_seconds=1.3e-4
    )


def packings(*, keeps_order: bool) -> dict[str, MicroBatchSettings | None]:
    plain = MicroBatchSettings(
        capacity=CAPACITY,
        stages=batch_distance(NUM_STAGES, shares_head=True),
        keeps_order=keeps_order,
        limits=PackingLimits(work_limit=LIMITS.work_limit),
    )
    return {
        "greedy": replace(plain, is_level=True),
        "first fit and merging": plain,
        "two programs": replace(plain, uses_solver=True),
        "two programs and merging": replace(plain, uses_solver=True),
        "level program": replace(plain, uses_solver=True, is_level=True),
        "a run's greedy": None,
        "a run's solver": None,
    }


def measure(kind: str, *, keeps_order: bool, lines: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    own = adapters(kind, seed=1)
    asked = WindowQuestion(adapters=own, token_budget=CAPACITY, stages=STAGES, keeps_order=keeps_order, flat_tokens=512)
    rows = []
    for name, settings in packings(keeps_order=keeps_order).items():
        began = time.process_time()
        if settings is None:
            found = (greedy_schedule if "greedy" in name else solved_schedule)(asked)
            schedule, capacity = found.micro_batches, found.capacity
            stages = batch_distance(NUM_STAGES, shares_head=found.shares_head)
        else:
            capacity, stages = settings.capacity, settings.stages
            schedule = schedule_micro_batches(own, settings=settings)
            if name == "two programs":
                schedule = _unmerged(own, settings)
        seconds = time.process_time() - began
        assert not find_schedule_faults(schedule, own, capacity=capacity, multiple=1, stages=stages)
        times, tokens = simulated(schedule, lines), sum(each.tokens(1) for each in schedule)
        padded = sum(padded_tokens(each.samples, PADDING) for each in schedule)
        rows.append(
            {
                "adapters": kind,
                "order": "kept" if keeps_order else "free",
                "packing": name,
                "capacity": capacity,
                "micro_batches": len(schedule),
                "no_ops": sum(not each.samples for each in schedule),
                "bubble_ratio": times.bubble_ratio,
                "padding_share": 1 - tokens / padded,
                "window_seconds": times.seconds,
                "plan_cpu_seconds": seconds,
                "plan_over_window": seconds / times.seconds,
            }
        )
    return rows


def _unmerged(own: Sequence[AdapterBatches], settings: MicroBatchSettings) -> tuple[MicroBatch, ...]:
    """Return the schedule of the two programs alone: batch by batch, so that nothing is there to merge with."""
    found: list[MicroBatch] = []
    for step in range(STEPS):
        for adapter in own:
            batch = AdapterBatches(adapter=adapter.adapter, lengths=adapter.lengths[step : step + 1])
            for each in schedule_micro_batches([batch], settings=settings, groups=[(adapter.adapter,)]):
                found.append(MicroBatch(tuple(replace(sample, batch=step) for sample in each.samples)))
    return with_no_ops(found, stages=settings.stages)


def headline_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    def of(packing: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["packing"] == packing]

    greedy, solver = of("a run's greedy"), of("a run's solver")
    over = [s["bubble_ratio"] / g["bubble_ratio"] for s, g in zip(solver, greedy, strict=True)]
    faster = [s["window_seconds"] / g["window_seconds"] for s, g in zip(solver, greedy, strict=True)]
    kept = [ratio for ratio, row in zip(over, greedy, strict=True) if row["order"] == "kept"]
    return {
        "bubble_solver_over_greedy": max(over),
        "bubble_solver_over_greedy_in_order": max(kept),
        "window_solver_over_greedy": max(faster),
        "window_solver_over_greedy_best": min(faster),
        "bubble_of_two_programs_and_merging": max(row["bubble_ratio"] for row in of("two programs and merging")),
        "plan_over_window": max(row["plan_over_window"] for row in solver),
    }


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "pipeline_microbatches.json")
    arguments = parser.parse_args()
    lines = pass_lines()
    rows = [
        row
        for kind in ("gsm8k", "unequal")
        for keeps_order in (True, False)
        for row in measure(kind, keeps_order=keeps_order, lines=lines)
    ]
    print_table(rows, columns=list(rows[0]))
    headline = headline_of(rows)
    print(f"bubble_solver_over_greedy {headline['bubble_solver_over_greedy']:.3f}")
    notes = {"stages": NUM_STAGES, "steps": STEPS, "padding_multiple": PADDING, "pass_lines": lines}
    write_result(arguments.out, question=QUESTION, headline=headline, rows=rows, notes=notes)


if __name__ == "__main__":
    main()
