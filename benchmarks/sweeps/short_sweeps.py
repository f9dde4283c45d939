"""Short trainings cut out of recorded grids: from how many steps on may early exit compare their trials?

At a constant learning rate the first part of a training is a training on fewer rows. So a grid that was trained on a
thousand rows holds grids of 60 that were trained on 200, 320 or 500, to their end. Comparisons read few rows, as a
short task's do: drawn as in ``small_sweeps``, real where a grid kept them. Small sweeps are 12 to 16 of the 60 trials.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, RecordedTrial, read_grid
from benchmarks.sweeps.row_noise import OUT, recorded_noise
from cohort.tuning import Candidate, EarlyExitSettings, RecordedCurve, replay_curves
from cohort.tuning.early_exit.first_comparison import FirstComparison
from cohort.tuning.evaluation_times import warmup_steps

__all__ = ["main", "short_grid", "swept"]

CURVES = Path(__file__).parent / "curves"
# of 60 trials on 320 rows, with each row's loss: ``record_curves --rows 320 --epochs 1 --keep-rows-at ...``
SHORT_CURVES = Path(__file__).parent / "short_curves"
TRAINING_ROWS = (200, 320, 500)
# what evaluations of a short task read
EVALUATION_ROWS = (9, 16)
GOAL = 1.02
NEAR = 1.01
FLOORS = (4, 6, 5, 3, 2)
# where the third comparison may be, and how many it leaves
THIRD = (0.5, 0.6, 0.65, 0.7)
KEPT = ((1 / 3, 4), (1 / 2, 5), (2 / 3, 6))
# as it was before there was a third comparison, and before that
TWICE = EarlyExitSettings(finish_fraction=1.0)
BEFORE = TWICE.with_keys(compare_after_steps=6, tolerance=0.0, select_fraction=0.5, reselect_fraction=0.3)
# a set whose loss jumps by a third between two evaluations, which no rule can foresee
JUMPS = "banking77 (llama16M)"


def short_grid(grid: Grid, *, rows: int) -> Grid | None:
    """Return the grid as if it had been trained on ``rows`` rows, or None if it was trained on fewer."""
    trained = min(trial.planned_steps * trial.batch_size for trial in grid.trials)
    if rows > trained or grid.source.get("schedule", "constant") != "constant":
        return None
    trials = []
    for trial in grid.trials:
        end = math.ceil(rows / trial.batch_size)
        points = tuple(point for point in trial.points if point[0] <= end)
        trials.append(replace(trial, planned_steps=points[-1][0], points=points))
    return replace(grid, trials=tuple(trials))


def swept(
    grid: Grid, trials: Sequence[RecordedTrial], settings: EarlyExitSettings, *, num_rows: int, seed: int
) -> dict[str, float]:
    """Return what early exit saves and loses on some trials of a grid, decided by ``num_rows`` rows."""
    rng = np.random.default_rng([seed, grid.seed, num_rows])
    slope, floor = recorded_noise(json.loads(Path(OUT).read_text(encoding="utf-8")))[grid.name.split(" ")[0]][0]
    shared_N = rng.standard_normal(num_rows)
    tokens = grid.source.get("row_tokens")
    chosen = None if tokens is None else rng.choice(len(tokens), size=num_rows, replace=False)
    best = min(trial.best for trial in trials)
    fewest_steps = min(trial.planned_steps for trial in trials)
    curves = []
    for trial in trials:
        losses, rows = {}, {}
        for step, _, loss in trial.points:
            if chosen is not None and step in trial.row_losses:
                own = np.array(trial.row_losses[step])[chosen]
                losses[step] = float(own.sum() / np.array(tokens)[chosen].sum())
            else:
                own = loss + slope * (loss - best) * shared_N
                own = own + floor * loss / math.sqrt(2) * rng.standard_normal(num_rows)
                losses[step] = float(own.mean()) if math.isfinite(loss) else loss
            rows[step] = {"loss": tuple(own.tolist())}
        candidate = evaluated(trial, settings, fewest_steps=fewest_steps)
        curve = RecordedCurve.from_points(candidate, trial.points, batch_size=trial.batch_size, row_values=rows)
        curves.append(replace(curve, validation_losses=losses))
    report = replay_curves(curves, settings)
    reached = min(
        loss
        for trial in trials
        for step, _, loss in trial.points
        if step <= report.steps[trial.trial_id] and math.isfinite(loss)
    )
    return {"saved_percent": 100 * report.saved_share, "ratio": reached / best}


def evaluated(trial: RecordedTrial, settings: EarlyExitSettings, *, fewest_steps: int) -> Candidate:
    """Return the trial as a short task evaluates it: where trials are compared, and after the last step.

    Each at the first recorded loss from there on.
    """
    compared = FirstComparison.of(settings, fewest_steps=fewest_steps)
    warmup = warmup_steps(trial.planned_steps, fraction=settings.warmup_fraction)
    wanted = [share * trial.planned_steps for share in compared.milestones or ()]
    wanted += [warmup] if compared.evaluations_in_warmup else []
    recorded = [step for step, _, _ in trial.points]
    steps = {next(step for step in recorded if step >= each) for each in wanted}
    return Candidate(
        trial_id=trial.trial_id,
        planned_steps=trial.planned_steps,
        warmup_steps=warmup,
        evaluation_steps=tuple(sorted({*steps, recorded[-1]})),
    )


def rows_of(grids: Sequence[Grid], settings: EarlyExitSettings, *, draws: int) -> list[dict[str, Any]]:
    """Return every sweep of one setting: whole grids, and small sweeps drawn from them."""
    found = []
    for grid in grids:
        for rows in TRAINING_ROWS:
            short = short_grid(grid, rows=rows)
            if short is None:
                continue
            for draw in range(draws):
                num_rows = EVALUATION_ROWS[draw % len(EVALUATION_ROWS)]
                rng = np.random.default_rng([draw, grid.seed, rows])
                few = [short.trials[n] for n in sorted(rng.permutation(60)[: int(rng.integers(12, 17))])]
                for kind, trials in (("60", short.trials), ("small", few)):
                    facts = {"kind": kind, "set": grid.name, "seed": grid.seed, "rows": rows, "draw": draw}
                    found.append({**facts, **swept(short, trials, settings, num_rows=num_rows, seed=draw)})
    return found


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what one setting saves and loses."""
    saved, ratios = [row["saved_percent"] for row in rows], [row["ratio"] for row in rows]
    return {
        "saved_mean": statistics.fmean(saved),
        "ratio_mean": statistics.fmean(ratios),
        "ratio_95": float(np.quantile(ratios, 0.95)),
        "ratio_max": max(ratios),
        "within_1_percent": sum(ratio <= NEAR for ratio in ratios),
        "above_goal_share": statistics.fmean(ratio > GOAL for ratio in ratios),
        "ratio_mean_without_jumps": statistics.fmean(row["ratio"] for row in rows if row["set"] != JUMPS),
    }


def main() -> None:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2, help="of rows and of small sweeps")
    parser.add_argument("--out", type=Path, default=RESULTS / "short_sweeps.json")
    parser.add_argument("--settings", nargs="+", help="those whose names begin so; all by default")
    arguments = parser.parse_args()
    grids = [
        grid
        for grid in map(read_grid, sorted([*CURVES.glob("*.gz"), *SHORT_CURVES.glob("*.gz")]))
        if len(grid.trials) == 60
    ]
    tried = {"default": EarlyExitSettings()}
    for at, (kept, least) in itertools.product(THIRD, KEPT):
        name = f"a third at {at:.0%} leaves {kept:.0%}, {least} at least"
        tried[name] = EarlyExitSettings(finish_at=at, finish_fraction=kept, finish_at_least=least)
    tried |= {f"after {count} steps": TWICE.with_keys(compare_after_steps=count) for count in FLOORS}
    tried |= {
        "after 4 steps, no tolerance": TWICE.with_keys(tolerance=0.0),
        "after 4 steps, a tolerance of 2 %": TWICE.with_keys(tolerance=0.02),
        "after 4 steps, half go on": TWICE.with_keys(select_fraction=0.5, reselect_fraction=0.3),
        "after 4 steps, 30 % go on": TWICE.with_keys(select_fraction=0.3, reselect_fraction=0.5),
        "as before": BEFORE,
        "ranks alone, after 4 steps": TWICE.with_keys(risk=1.0),
    }
    table, sweeps = [], []
    wanted = tuple(arguments.settings or ("",))
    for name, settings in tried.items():
        if not name.startswith(wanted):
            continue
        found = rows_of(grids, settings, draws=arguments.draws)
        kinds = {kind: [row for row in found if row["kind"] == kind] for kind in ("60", "small")}
        kinds["60 of 320 rows"] = [row for row in kinds["60"] if row["rows"] == 320]
        table += [{"settings": name, "kind": kind, "sweeps": len(rows), **totals(rows)} for kind, rows in kinds.items()]
        sweeps += [{"settings": name, **row} for row in found]
        print_table(table[-3:], columns=list(table[-1]))
    by_name = {(row["settings"], row["kind"]): row for row in table}
    headline = {}
    for name, suffix in (("default", "default"), ("after 4 steps", "after_4"), ("as before", "after_6")):
        for kind, key in (("60", "60"), ("small", "small"), ("60 of 320 rows", "60_at_320_rows")):
            if (row := by_name.get((name, kind))) is not None:
                headline[f"saved_percent_{key}_{suffix}"] = row["saved_mean"]
                headline[f"best_loss_ratio_{key}_{suffix}"] = row["ratio_mean"]
    write_result(
        arguments.out,
        question="From how many steps on may early exit compare the trials of a short training?",
        headline=headline,
        rows=table + sweeps,
        notes={
            "real": "the loss of every trial at every evaluation, up to the share that is cut out",
            "drawn": "rows of evaluations, by benchmarks/sweeps/row_noise.json, where a grid kept means alone",
            "draws": arguments.draws,
        },
    )


if __name__ == "__main__":
    main()
