"""Does a sweep with early exit train each trial as the full grid does, bit for bit, and lose nothing by other packs?

``python -m benchmarks.numerics.grid_and_sweep --model DIRECTORY --prepared DIRECTORY [--out RESULT.json]``: the folder
is one that ``benchmarks.sweeps.study_data`` wrote. Each set's grid is trained in full, all trials in one pack, and
again with early exit in a smaller bank, where trials wait, park, return and stop; in both modes of numerics. A trial's
validation losses are compared step by step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.record_curves import record
from benchmarks.sweeps.run_with_exits import run_with_exits
from benchmarks.sweeps.study_data import read_rows, validation_rows
from benchmarks.sweeps.sweep_grid import PlannedGridTrial, plan_grid
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.tuning import EarlyExitSettings, Study

QUESTION = "Does a sweep with early exit give each trial the losses it has in the full grid, on this device?"


def _executor(
    options: argparse.Namespace,
    planned: Sequence[PlannedGridTrial],
    train: TokenisedRows,
    *,
    numerics: Numerics,
    num_slots: int,
) -> Executor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder = load_decoder(options.model, dtype="bfloat16" if device == "cuda" else "float32", device=device)
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=train,
        settings=ExecutorSettings(
            num_slots=num_slots,
            num_rank_rows=num_slots * max(trial.spec.adapter.r for trial in planned),
            token_budget=4096,
            evaluation_token_budget=8192,
            graph_tokens=3072,
            numerics=numerics,
        ),
        device=device,
        compute_dtype=decoder.dtype,
    )


def _compared(options: argparse.Namespace, name: str, numerics: Numerics) -> dict[str, Any]:
    train = read_rows(options.prepared, name, "train", count=options.rows)
    validation = validation_rows(options.prepared, name, seed=0, count=options.evaluation_rows)
    planned = plan_grid(
        len(train), epochs=1, learning_rates=(1e-4, 5e-4, 2e-3, 1e-2), ranks=(8, 16, 64), batch_sizes=(2, 8)
    )[: options.trials]
    begun = time.perf_counter()
    grid = record(_executor(options, planned, train, numerics=numerics, num_slots=len(planned)), planned, validation)
    study = Study([trial.candidate for trial in planned], EarlyExitSettings())
    specs = {trial.spec.trial_id: trial.spec for trial in planned}
    few = max(2, len(planned) // 3)
    executor = _executor(options, planned, train, numerics=numerics, num_slots=few)
    found = run_with_exits(executor, study, specs, validation=validation)
    best = study.result()
    assert best is not None, "a sweep with finite losses has a best checkpoint"
    ratios = [
        loss / grid.validations[trial_id][step]
        for trial_id, points in found.items()
        for step, loss in points.items()
        if step in grid.validations[trial_id]
    ]
    winner = min(grid.validations, key=grid.best)
    return {
        "set": name,
        "numerics": str(numerics),
        "trials": len(planned),
        "evaluations": len(ratios),
        "other_evaluations": sum(ratio != 1.0 for ratio in ratios),
        "largest_ratio": max(ratios),
        "smallest_ratio": min(ratios),
        "same_winner": best.trial_id == winner,
        "best_loss_ratio": best.value / grid.best(winner),
        "winner_against_itself": best.value / grid.best(best.trial_id),
        "steps_saved_percent": 100
        * (1 - sum(study.trajectory(i).num_steps for i in specs) / sum(t.candidate.planned_steps for t in planned)),
        "replays": 0 if executor.captured is None else executor.captured.num_replays,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory of a Hugging Face checkpoint")
    parser.add_argument("--prepared", type=Path, required=True, help="folder that study_data wrote")
    parser.add_argument("--sets", nargs="+", default=["gsm8k", "banking77", "cot_reasoning"])
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--evaluation-rows", type=int, default=48)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--out", type=Path, default=RESULTS / "grid_and_sweep.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.sets:
        for numerics in (Numerics.EXACT, Numerics.FAST):
            rows.append(_compared(options, name, numerics))
            print(rows[-1], flush=True)
            exact = [row for row in rows if row["numerics"] == "exact"]
            headline = {"exact_other_evaluations": sum(row["other_evaluations"] for row in exact)}
            for kind in ("exact", "fast"):
                own = [row["winner_against_itself"] for row in rows if row["numerics"] == kind]
                headline |= {f"{kind}_winner_against_itself_max": max(own)} if own else {}
            write_result(options.out, question=QUESTION, headline=headline, rows=rows)
    print_table(rows, columns=list(rows[0]))


if __name__ == "__main__":
    main()
