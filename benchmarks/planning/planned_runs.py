"""Where does a run end sooner that follows a plan of packs, and how near is it to the bound over all packings?

A full grid of configurations and what a sweep's last comparison leaves of it, on 2, 4 and 8 GPUs, by simulation with
measured seconds of steps: an 8B model (the convex cost that cost_model.py fitted on an H200), a 70B model in fp8, which
one H200 holds (frozen_formats.py measured its steps), and one in bfloat16, which needs two (tensor parallel steps of
figure13.py, eight of eighty layers, times ten; more GPUs are analytic). What adapters add to a step of 70B is that of
8B times the ratio of their widths. Planned: the plan that a run makes. Refill: slots that are filled as others end, as
the step loop admits trials, all executors in step. Min GPU and Max GPU: PLoRA's baselines, every trial alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.llama_shapes import decoder_config, gsm8k_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.planning.plan_packing import measured_cost
from benchmarks.planning.solo_baselines import max_gpu_plan, min_gpu_plan
from cohort.models.checkpoint_layout import linear_shapes
from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, CostModel, CostSource, Interconnect, StepCost, derive_cost
from cohort.scheduling.cost.task_time import training_time
from cohort.scheduling.packing.choice import LEAST_GAIN, run_settings
from cohort.scheduling.packing.planner import plan_packs
from cohort.scheduling.packing.records import PackingProblem, PackItem
from cohort.scheduling.packing.verify import check_pack_plan, packing_lower_bound

QUESTION = "Where does a run that follows a plan of packs end sooner, and how near the bound over all packings?"
RANKS, BATCH_SIZES = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32)
EXAMPLES = 2000
NUM_SLOTS = 64
# float32 weight, gradient and two moments, and a copy to compute with
BYTES_PER_ENTRY = 18
GPU_BYTES = 0.9 * 141e9
# what a full pass keeps for its backward pass, and the loss head
PASS_BYTES = 16e9
TOKEN_BUDGET = 8192
# of column generation: fewer make the bound weaker, not wrong
BOUND_ROUNDS = 200


def base_of(name: str) -> tuple[dict[int, StepCost], float, str]:
    """Return the costs of a step by number of GPUs, the bytes of the base model, and its shape."""
    cost = measured_cost("8b")
    assert cost is not None, "run benchmarks.planning.cost_model first"
    if name == "8b":
        return _derived(cost, least=1, shape="8b"), 16.1e9, "8b"
    wider = _width("70b") / _width("8b")
    adapters = {
        key: getattr(cost, key) * wider
        for key in ("seconds_per_adapter", "seconds_per_rank_row", "seconds_per_rank_token")
    }
    if name == "70b fp8":
        (row,) = _rows("frozen_formats_70b")
        steps = {1024: row["step_1024_ms"] / 1e3, 4096: row["step_4096_ms"] / 1e3}
        return _derived(_line(steps, adapters, num_adapters=4, r=16), least=1, shape="70b"), 72.7e9, "70b"
    times = {row["batch"]: 10 * row["step_seconds"] for row in _rows("several_gpus_figure13_70b") if _is_tensor(row)}
    steps = {8 * 256 * batch: seconds for batch, seconds in times.items()}
    on_two = {key: value / (1 if key == "seconds_per_adapter" else 2) for key, value in adapters.items()}
    return _derived(_line(steps, on_two, num_adapters=8, r=16), least=2, shape="70b"), 141.1e9, "70b"


def _is_tensor(row: dict[str, Any]) -> bool:
    return bool(row["strategy"] == "tensor" and row["gpus"] == 2)


def _rows(result: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))["rows"]
    return found


def _width(shape: str) -> int:
    return sum(sum(own) for own in linear_shapes(decoder_config(shape)).values())


def _line(steps: dict[int, float], adapters: dict[str, float], *, num_adapters: int, r: int) -> StepCost:
    """Return the cost of a line through the least and the most tokens that were measured, adapters taken off."""
    (few, low), (many, high) = min(steps.items()), max(steps.items())
    own = adapters["seconds_per_rank_token"] * r
    slope = (high - low) / (many - few) - own
    each = adapters["seconds_per_adapter"] + adapters["seconds_per_rank_row"] * r
    fixed = low - (slope + own) * few - num_adapters * each
    return StepCost(fixed_seconds=max(0.0, fixed), seconds_per_token=max(0.0, slope), **adapters)


def _derived(cost: StepCost, *, least: int, shape: str) -> dict[int, StepCost]:
    config = decoder_config(shape)
    link = Interconnect(
        bytes_per_second=3e11,
        seconds_per_collective=15e-6,
        collectives_per_step=4 * config.num_layers,
        bytes_per_token=2 * config.hidden_size,
    )
    return {d * least: derive_cost(cost, num_gpus=d, interconnect=link) for d in (1, 2, 4, 8) if d * least <= 8}


def grid(*, copies: int) -> list[tuple[int, int]]:
    return [(r, batch) for r in RANKS for batch in BATCH_SIZES for _ in range(copies)]


def left(configurations: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return every third one: what two comparisons leave, as far as rank and batch size do not decide."""
    return list(configurations[::3])


CASES = {"60 trials": (grid(copies=2), 1.0), "20 of 60 after a fifth": (left(grid(copies=2)), 0.8)}
NUM_GPUS = (8, 4, 2)


def measure(base: str, case: str) -> list[dict[str, Any]]:
    """Return a row for each number of GPUs, the most first."""
    rows: list[dict[str, Any]] = []
    area = 0.0
    for num_gpus in NUM_GPUS:
        problem, capacity, requests = question(base, case, num_gpus)
        longest = _longest_alone(problem)
        if not rows:
            area = packing_lower_bound(problem, most_rounds=BOUND_ROUNDS).area_seconds * num_gpus
        # with fewer GPUs there are fewer degrees, so packs cost no less
        rows.append(_row(base, case, problem, capacity, requests, bound=max(longest, area / num_gpus)))
    return rows


def _longest_alone(problem: PackingProblem) -> float:
    return max(
        min(problem.seconds([trial], num_gpus=d) for d in problem.degrees if problem.fits([trial], num_gpus=d))
        for trial in problem.trials
    )


def question(base: str, case: str, num_gpus: int) -> tuple[PackingProblem, Capacity, list[Request]]:
    """Return what is to be packed, and the same as the step loop sees it."""
    costs, base_bytes, shape = base_of(base)
    costs = {degree: cost for degree, cost in costs.items() if degree <= num_gpus}
    configurations, share = CASES[case]
    lengths = [float(sum(pair)) for pair in gsm8k_lengths()]
    mean, square = sum(lengths) / len(lengths), sum(n * n for n in lengths) / len(lengths)
    width = _width(shape)
    works = {
        i: AdapterWork(
            r=r,
            num_tokens=batch * mean,
            num_steps=max(1, round(share * EXAMPLES / batch)),
            sum_squares=batch * square,
            num_sequences=batch,
        )
        for i, (r, batch) in enumerate(configurations)
    }
    room = {d: GPU_BYTES - base_bytes / d - PASS_BYTES for d in costs}
    problem = PackingProblem(
        trials=tuple(
            PackItem(trial_id=i, work=work, state_bytes={d: BYTES_PER_ENTRY * width * work.r // d for d in costs})
            for i, work in works.items()
        ),
        num_gpus=num_gpus,
        cost=CostModel(by_num_gpus=costs, sources=dict.fromkeys(costs, CostSource.ANALYTIC)),
        room_bytes=room,
        most_trials=NUM_SLOTS,
    )
    degree = min(costs)
    capacity = Capacity(
        rank_rows=int(room[degree] * degree / (BYTES_PER_ENTRY * width)),
        num_slots=NUM_SLOTS,
        tokens_per_step=TOKEN_BUDGET,
        num_ranks=num_gpus // degree,
    )
    requests = [
        Request(trial_id=i, r=work.r, batch_size=configurations[i][1], mean_length=mean) for i, work in works.items()
    ]
    return problem, capacity, requests


def _row(
    base: str, case: str, problem: PackingProblem, capacity: Capacity, requests: Sequence[Request], *, bound: float
) -> dict[str, Any]:
    degree, works = min(problem.degrees), {trial.trial_id: trial.work for trial in problem.trials}
    cost = problem.cost.by_num_gpus[degree]
    refill = training_time(requests, works=works, capacity=capacity, cost=cost).seconds
    began = time.process_time()
    # as a run: all of its packs have the degree of its strategy
    one = replace(
        problem,
        cost=CostModel(by_num_gpus={degree: cost}, sources={degree: CostSource.ANALYTIC}),
        room_bytes={degree: problem.room_bytes[degree]},
    )
    plan = plan_packs(one, settings=run_settings())
    seconds = time.process_time() - began
    check_pack_plan(plan, one)
    planned = plan.makespan_seconds
    follows = planned <= (1 - LEAST_GAIN) * refill
    return {
        "base": base,
        "trials": case,
        "gpus": problem.num_gpus,
        "gpus_of_a_pack": degree,
        "planned_hours": planned / 3600,
        "planned_over_bound": planned / bound,
        "refill_over_bound": refill / bound,
        "min_gpu_over_bound": min_gpu_plan(problem).makespan_seconds / bound,
        "max_gpu_over_bound": max_gpu_plan(problem).makespan_seconds / bound,
        "planned_over_refill": planned / refill,
        "auto": "planned" if follows else "refill",
        "auto_over_bound": (planned if follows else refill) / bound,
        "packs": len(plan.jobs),
        "plan_cpu_seconds": seconds,
    }


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "planned_runs.json")
    arguments = parser.parse_args()
    rows = [row for base in ("8b", "70b fp8", "70b bf16") for case in CASES for row in measure(base, case)]
    print_table(rows, columns=list(rows[0]))
    headline = {
        "planned_over_refill_worst": max(row["planned_over_refill"] for row in rows),
        "planned_over_refill_best": min(row["planned_over_refill"] for row in rows),
        "planned_over_bound": max(row["planned_over_bound"] for row in rows),
        "refill_over_bound": max(row["refill_over_bound"] for row in rows),
        "auto_over_refill_worst": max(row["auto_over_bound"] / row["refill_over_bound"] for row in rows),
        "auto_follows_the_plan": sum(row["auto"] == "planned" for row in rows) / len(rows),
        "plan_cpu_seconds_worst": max(row["plan_cpu_seconds"] for row in rows),
    }
    write_result(arguments.out, question=QUESTION, headline=headline, rows=rows, notes={"examples": EXAMPLES})


if __name__ == "__main__":
    main()
