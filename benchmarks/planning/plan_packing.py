"""How fast are configurations packed onto GPUs, and how near the bound over all packings?

The configurations span PLoRA's Table 1: ranks 8 to 128, batch sizes 1 to 32, sequences of 1,024 tokens. Seconds of a
step are those of assumed machines, one bound by its products and one by the fixed part of a step, as PLoRA's was (App.
C.1: 10 % more time from batch size 1 to 8): planning times and ratios depend on their shape, not their scale.
Where cost_model.py has left its results, the same grid with GSM8K's lengths is planned with the costs fitted there,
against Min GPU and Max GPU as in PLoRA's Figure 4; costs of several GPUs are analytic.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.planning.solo_baselines import max_gpu_plan, min_gpu_plan
from cohort.scheduling.cost.model import AdapterWork, CostModel, Interconnect, Knee, StepCost
from cohort.scheduling.packing.planner import plan_packs
from cohort.scheduling.packing.records import PackingProblem, PackItem
from cohort.scheduling.packing.verify import check_pack_plan, packing_lower_bound

RANKS = (8, 16, 32, 64, 128)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
LENGTH = 1024
EXAMPLES = 2000
GSM8K_LENGTH = 158
DEGREES = (1, 2, 4, 8)
# Llama-3.1-8B on one H200, in round numbers: a step costs its launches, then its tokens at about 450 TFLOP/s; adapters
# add their optimizer update and their share of the products; beyond 2,048 tokens a pass is bound by the products
PRODUCT_BOUND = StepCost(
    fixed_seconds=0.06,
    seconds_per_token=7.1e-5,
    seconds_per_adapter=1e-3,
    seconds_per_rank_row=2e-5,
    seconds_per_rank_token=2.4e-8,
    knees=(Knee(at_tokens=2048, seconds_per_token=2e-5),),
)
STEP_BOUND = StepCost(
    fixed_seconds=0.3,
    seconds_per_token=4e-6,
    seconds_per_adapter=1e-3,
    seconds_per_rank_row=2e-5,
    seconds_per_rank_token=2e-9,
    knees=(Knee(at_tokens=16384, seconds_per_token=6e-5),),
)
LINK = Interconnect(bytes_per_second=3e11, seconds_per_collective=15e-6, collectives_per_step=128, bytes_per_token=8192)
# widths of each adapted linear of a layer: the one that tensor parallelism leaves whole, the one that it shards
LINEARS = ((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (4096, 14336))
NUM_LAYERS = 32
# float32 weight, gradient and two moments (PLoRA's printed formula counts moments and precision twice)
BYTES_PER_ENTRY = 16
BASE_BYTES = 16_060_000_000
GPU_BYTES = 141e9


def state_bytes(r: int, *, num_gpus: int) -> int:
    """Return the bytes of an adapter's state on each GPU: tensor parallelism shards one of a linear's two factors."""
    return BYTES_PER_ENTRY * NUM_LAYERS * sum(r * (whole + -(-sharded // num_gpus)) for whole, sharded in LINEARS)


def trial(trial_id: int, *, r: int, batch_size: int, length: int = LENGTH) -> PackItem:
    state = {degree: state_bytes(r, num_gpus=degree) for degree in DEGREES}
    work = AdapterWork(
        r=r,
        num_tokens=batch_size * length,
        num_steps=-(-EXAMPLES // batch_size),
        sum_squares=batch_size * length**2,
        num_sequences=batch_size,
    )
    return PackItem(trial_id=trial_id, work=work, state_bytes=state)


def problem(
    trials: list[PackItem],
    *,
    num_gpus: int,
    cost: StepCost = PRODUCT_BOUND,
    gpu_bytes: float = GPU_BYTES,
    token_budget: int = 16384,
) -> PackingProblem:
    return PackingProblem(
        trials=tuple(trials),
        num_gpus=num_gpus,
        cost=CostModel.from_one_gpu(cost, degrees=DEGREES, interconnect=LINK),
        room_bytes={d: 0.9 * gpu_bytes - -(-BASE_BYTES // d) for d in DEGREES},
        activation_bytes=2e9,
        activation_bytes_per_token=1.5e6,
        token_budget=token_budget,
    )


def measured_cost(shape: str) -> StepCost | None:
    """Return the convex cost that cost_model.py fitted to a shape's measured steps; None where it has not run."""
    path = RESULTS / "cost_model.json"
    fits = json.loads(path.read_text(encoding="utf-8"))["notes"]["fits"] if path.exists() else {}
    if shape not in fits:
        return None
    plain = {name: value for name, value in fits[shape]["convex"].items() if name != "launches"}
    return StepCost(**{**plain, "knees": tuple(Knee(**knee) for knee in plain["knees"])})


def measure(name: str, given: PackingProblem) -> dict[str, Any]:
    begun, cpu_begun = time.perf_counter(), time.process_time()
    plan = plan_packs(given)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    check_pack_plan(plan, given)
    bound = packing_lower_bound(given)
    alone = {"min_gpu": min_gpu_plan(given), "max_gpu": max_gpu_plan(given)}
    for other in alone.values():
        check_pack_plan(other, given)
    return {
        "question": name,
        "trials": len(given.trials),
        "gpus": given.num_gpus,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "over_bound": plan.makespan_seconds / bound.seconds,
        "ar": plan.approximation_ratio,
        "makespan_hours": plan.makespan_seconds / 3600,
        "speedup_over_min_gpu": alone["min_gpu"].makespan_seconds / plan.makespan_seconds,
        "speedup_over_max_gpu": alone["max_gpu"].makespan_seconds / plan.makespan_seconds,
        "packs": len(plan.jobs),
        "degrees": dict(sorted(Counter(job.num_gpus for job in plan.jobs).items())),
        "policy": plan.policy,
        "solves": plan.num_solves,
        "unproven": plan.num_unproven,
        "bound_is_tight": bound.is_tight,
    }


def headline_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the worst of all cases of 120 on 8, and what 1,000 on 64 took."""
    small = [row for row in rows if row["trials"] == 120]
    found = {
        "plan_120_on_8_seconds": max(row["seconds"] for row in small),
        "plan_120_on_8_bound": max(row["over_bound"] for row in small),
        "plan_120_on_8_ar": max(row["ar"] for row in small),
        "plan_1000_on_64_seconds": rows[3]["seconds"],
        "plan_1000_on_64_bound": rows[3]["over_bound"],
    }
    measured = [row for row in rows if "measured" in row["question"]]
    if measured:
        found["plan_120_on_8_over_min_gpu"] = measured[0]["speedup_over_min_gpu"]
        found["plan_120_on_8_over_max_gpu"] = measured[0]["speedup_over_max_gpu"]
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "plan_packing.json")
    arguments = parser.parse_args()
    grid = [(r, batch_size) for r in RANKS for batch_size in BATCH_SIZES for _ in range(4)]
    rng = random.Random(0)
    many = [(rng.choice(RANKS), rng.choice(BATCH_SIZES)) for _ in range(1000)]
    grid_trials = [trial(i, r=r, batch_size=b) for i, (r, b) in enumerate(grid)]
    many_trials = [trial(i, r=r, batch_size=b) for i, (r, b) in enumerate(many)]
    rows = [
        measure("120 on 8", problem(grid_trials, num_gpus=8)),
        measure("120 on 8, step-bound", problem(grid_trials, num_gpus=8, cost=STEP_BOUND)),
        measure(
            "120 on 8, step-bound, 40 GB",
            problem(grid_trials, num_gpus=8, cost=STEP_BOUND, gpu_bytes=40e9, token_budget=4096),
        ),
        measure("1000 on 64", problem(many_trials, num_gpus=64)),
    ]
    cost = measured_cost("8b")
    if cost is not None:
        short = [trial(i, r=r, batch_size=b, length=GSM8K_LENGTH) for i, (r, b) in enumerate(grid)]
        rows.append(measure("120 on 8, measured costs, GSM8K's lengths", problem(short, num_gpus=8, cost=cost)))
    print_table(rows, columns=[column for column in rows[0] if column not in ("degrees", "bound_is_tight")])
    write_result(
        arguments.out,
        question="How fast are configurations packed onto GPUs, and how near the bound over all packings?",
        headline=headline_of(rows),
        rows=rows,
        notes={
            "costs": "assumed for Llama-3.1-8B on H200 where no row says measured; several GPUs are analytic",
            "threads": "one solver worker",
            "cpu_seconds": "of all threads of this process: what seconds would be on a machine with nothing else to do",
            "examples": EXAMPLES,
            "length": LENGTH,
        },
    )


if __name__ == "__main__":
    main()
