"""One real run of the grid with early exit, held against the replay of the curves that were recorded without it.

The trials share the bank with others than in the recording, are parked and brought back, and stop for good: the exits,
the losses and the best checkpoint should be those of the replay. On a GPU the frozen products' bits depend on the size
of the pass, so losses agree within a tolerance that is reported, not bit for bit.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grid
from benchmarks.sweeps.record_curves import CURVES, add_grid_arguments, add_model_arguments, build_executor, plan
from benchmarks.sweeps.run_with_exits import run_with_exits
from benchmarks.sweeps.study_data import STUDIED, read_rows, validation_rows
from cohort.tuning import DecisionKind, EarlyExitSettings, Study


def compared(
    grid: Grid, study: Study, losses: dict[int, dict[int, float]], early_exit: EarlyExitSettings
) -> dict[str, Any]:
    """Return how the real run and the replay differ."""
    report = grid.replay(early_exit)
    best = study.result()
    assert best is not None, "a run with finite losses has a best checkpoint"
    assert report.best is not None, "a grid with finite losses has a best checkpoint"
    recorded = {trial.trial_id: {step: loss for step, _, loss in trial.points} for trial in grid.trials}
    differences = [
        abs(loss / recorded[trial_id][step] - 1)
        for trial_id, points in losses.items()
        for step, loss in points.items()
        if math.isfinite(loss) and math.isfinite(recorded[trial_id][step])
    ]
    batch = {trial.trial_id: trial.batch_size for trial in grid.trials}
    used = sum(study.trajectory(trial_id).num_steps * size for trial_id, size in batch.items())
    kept = {d.trial_id for d in study.decisions if d.kind is DecisionKind.KEEP}
    kept_replayed = {d.trial_id for d in report.decisions if d.kind is DecisionKind.KEEP}
    return {
        "set": grid.name,
        "seed": grid.seed,
        "trials": len(batch),
        "same_steps": sum(study.trajectory(i).num_steps == steps for i, steps in report.steps.items()),
        "kept": len(kept),
        "kept_in_both": len(kept & kept_replayed),
        "samples_saved_percent": 100 * (1 - used / report.samples_full),
        "samples_saved_percent_replayed": 100 * report.saved_share,
        "best_trial": best.trial_id,
        "best_trial_replayed": report.best.trial_id,
        "best_loss_ratio": best.value / grid.best,
        "best_loss_ratio_replayed": report.best.value / grid.best,
        "loss_difference_median_percent": 100 * sorted(differences)[len(differences) // 2],
        "loss_difference_largest_percent": 100 * max(differences),
    }


def main() -> None:
    """Run, compare, write."""
    studied = [name for name, entry in STUDIED.items() if entry.role == "studied"]
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    add_grid_arguments(parser)
    parser.add_argument("--set", default=studied[0], choices=list(STUDIED))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curves", type=Path, default=CURVES)
    parser.add_argument("--most-resident", type=int, default=40, help="fewer than all: trials wait, park and return")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    grid = read_grid(arguments.curves / f"{arguments.set}_{arguments.name}_seed{arguments.seed}.json.gz")
    arguments.learning_rate_scale, arguments.range = grid.source["learning_rate_scale"], None
    train = read_rows(arguments.prepared, arguments.set, "train", count=arguments.rows)
    validation = validation_rows(arguments.prepared, arguments.set, seed=grid.seed, count=arguments.evaluation_rows)
    planned = plan(arguments, num_rows=len(train), seed=grid.seed)
    early_exit = EarlyExitSettings()
    study = Study([trial.candidate for trial in planned], early_exit)
    specs = {trial.spec.trial_id: trial.spec for trial in planned}
    executor = build_executor(arguments, list(specs.values()), train, num_slots=arguments.most_resident)
    begun = time.perf_counter()
    losses = run_with_exits(executor, study, specs, validation=validation)
    seconds = time.perf_counter() - begun
    row = compared(grid, study, losses, early_exit) | {"seconds": seconds}
    print_table([row], columns=list(row))
    write_result(
        arguments.out or RESULTS / f"verify_exits_{arguments.set}_seed{arguments.seed}.json",
        question="Do exits of a real run agree with their replay on recorded curves?",
        headline={
            "replay_same_steps_share": row["same_steps"] / row["trials"],
            "replay_loss_difference_median_percent": row["loss_difference_median_percent"],
        },
        rows=[row],
        notes={"recorded_seconds": grid.source["seconds"], "device": torch.device(arguments.device).type},
    )


if __name__ == "__main__":
    main()
