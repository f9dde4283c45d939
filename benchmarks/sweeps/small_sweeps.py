"""Small sweeps drawn from recorded grids, and whole grids, decided by rows: what early exit saves and loses.

A small sweep is 12 to 16 trials of a grid (all, of a grid of 18 or fewer), compared on 30, 60 or 120 validation rows.
Each setting sees the same draws. The floors were chosen on the first three of each grid; the others were drawn after
that, from the same grids: no grid was held out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grids
from benchmarks.sweeps.drawn_rows import replay_with_rows
from cohort.tuning import EarlyExitSettings

CURVES = Path(__file__).parent / "curves"
ROWS = (30, 60, 120)
SIZES = (12, 16)
# the grids that were recorded before the early-exit study and hold fewer evaluations
WITHOUT_EVALUATIONS = "gsm8k_stories260K"
GOAL = 1.02
# draws of each grid that the floors were chosen on
CHOSEN_ON = 3
BEFORE = EarlyExitSettings(risk=1.0, compare_after_steps=1, select_at_least=1, reselect_at_least=1, finish_fraction=1.0)
# as it was before there was a third comparison
TWICE = EarlyExitSettings(finish_fraction=1.0)
TRIED: Mapping[str, EarlyExitSettings] = {
    "default": EarlyExitSettings(),
    "two comparisons": TWICE,
    "a third that leaves 4": EarlyExitSettings(finish_fraction=1 / 3, finish_at_least=4),
    "a third at 50 %": EarlyExitSettings(finish_at=0.5),
    "a third at 60 %": EarlyExitSettings(finish_at=0.6),
    "a third whatever the noise": EarlyExitSettings(finish_noise=0),
    "ranks alone, as before": BEFORE,
    "ranks alone, few trials kept, after 4 steps": TWICE.with_keys(risk=1.0),
    "risk 0.025 alone": BEFORE.with_keys(risk=0.025),
    "risk 0.0025": TWICE.with_keys(risk=0.0025),
    "at least 10, then 5": TWICE.with_keys(select_at_least=10, reselect_at_least=5),
    "at least 10, then 8": TWICE.with_keys(select_at_least=10, reselect_at_least=8),
    "at least 12, then 5": TWICE.with_keys(select_at_least=12, reselect_at_least=5),
    "at least 12, then 6": TWICE.with_keys(select_at_least=12, reselect_at_least=6),
    "at least 12, then 7": TWICE.with_keys(select_at_least=12, reselect_at_least=7),
    "half go on, after 6 steps, no tolerance": EarlyExitSettings(
        compare_after_steps=6, tolerance=0.0, select_fraction=0.5, reselect_fraction=0.3, finish_fraction=1.0
    ),
    "no tolerance": TWICE.with_keys(tolerance=0.0),
    "after 1 step": TWICE.with_keys(compare_after_steps=1),
    "after 10 steps": TWICE.with_keys(compare_after_steps=10),
}


def small_rows(grids: Sequence[Grid], settings: EarlyExitSettings, *, draws: int) -> list[dict[str, Any]]:
    """Return what each small sweep saved and lost."""
    found = []
    for grid in grids:
        for draw in range(draws):
            rng = np.random.default_rng([draw, grid.seed, len(grid.trials)])
            size = int(rng.integers(SIZES[0], SIZES[1] + 1))
            trials = grid.trials if len(grid.trials) <= 18 else [grid.trials[n] for n in rng.permutation(60)[:size]]
            num_rows = ROWS[draw % len(ROWS)]
            swept = replay_with_rows(grid, trials, settings, num_rows=num_rows, seed=draw)
            found.append({"draw": draw, **_row(grid, num_trials=len(trials), num_rows=num_rows, swept=swept)})
    return found


def whole_rows(grids: Sequence[Grid], settings: EarlyExitSettings, *, num_rows: int = 128) -> list[dict[str, Any]]:
    """Return what each grid of 60 saved and lost."""
    return [
        _row(
            grid,
            num_trials=60,
            num_rows=num_rows,
            swept=replay_with_rows(grid, grid.trials, settings, num_rows=num_rows, seed=0),
        )
        for grid in grids
        if len(grid.trials) == 60
    ]


def _row(grid: Grid, *, num_trials: int, num_rows: int, swept: Any) -> dict[str, Any]:
    return {
        "set": grid.name,
        "seed": grid.seed,
        "trials": num_trials,
        "rows": num_rows,
        "samples_saved_percent": swept.saved_percent,
        "best_loss_ratio": swept.ratio,
    }


def by_role(small: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the small sweeps that the floors were chosen on, and the others, where there are any."""
    roles = {
        "small_chosen_on": [row for row in small if row["draw"] < CHOSEN_ON],
        "small_later": [row for row in small if row["draw"] >= CHOSEN_ON],
    }
    return {name: rows for name, rows in roles.items() if rows}


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what a setting saved and lost over all sweeps of one kind."""
    saved, ratios = [row["samples_saved_percent"] for row in rows], [row["best_loss_ratio"] for row in rows]
    return {
        "saved_min": min(saved),
        "saved_mean": statistics.fmean(saved),
        "ratio_mean": statistics.fmean(ratios),
        "ratio_max": max(ratios),
        "above_goal_share": statistics.fmean(ratio > GOAL for ratio in ratios),
    }


def write(path: Path, table: Sequence[Mapping[str, Any]], sweeps: Sequence[Mapping[str, Any]], *, draws: int) -> None:
    """Write what is known so far: a replay that is cut off keeps the settings it has."""
    others = [row for row in sweeps if row["table"] == "small" and row["set"] != "banking77 (llama16M)"]
    default = table[0]
    write_result(
        path,
        question="What does early exit save and lose in small sweeps, and in grids of 60, when rows decide?",
        headline={
            "best_loss_ratio_small_max": default["small_ratio_max"],
            "best_loss_ratio_small_max_chosen_on": default["small_chosen_on_ratio_max"],
            "best_loss_ratio_small_mean": default["small_ratio_mean"],
            "small_above_1_02_share": default["small_above_goal_share"],
            "small_samples_saved_percent_mean": default["small_saved_mean"],
            "small_samples_saved_percent_min": default["small_saved_min"],
            "best_loss_ratio_small_max_without_banking77_3_epochs": totals(others)["ratio_max"],
            "samples_saved_percent_60_min": default["60_saved_min"],
            "best_loss_ratio_60_max": default["60_ratio_max"],
        },
        rows=[{"table": "settings", **row} for row in table] + list(sweeps),
        notes={
            "real": "losses of every trial at every evaluation; rows of five grids of stories260K at two comparisons",
            "drawn": "all other rows, by the noise in benchmarks/sweeps/row_noise.json, measured with stories260K",
            "draws": draws,
        },
    )


def main() -> None:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=6, help="small sweeps of each grid")
    parser.add_argument("--settings", nargs="+", default=list(TRIED)[1:], choices=TRIED, help="besides the default")
    parser.add_argument("--out", type=Path, default=RESULTS / "small_sweeps.json")
    arguments = parser.parse_args()
    grids = read_grids(sorted(path for path in CURVES.glob("*.gz") if WITHOUT_EVALUATIONS not in path.name))
    table, sweeps = [], []
    for name in ("default", *arguments.settings):
        settings = TRIED[name]
        small, whole = small_rows(grids, settings, draws=arguments.draws), whole_rows(grids, settings)
        kinds = {"small": small, "60": whole, **by_role(small)}
        numbers = {f"{kind}_{key}": value for kind, rows in kinds.items() for key, value in totals(rows).items()}
        table.append({"settings": name, **numbers})
        if name == "default":
            sweeps = [{"table": kind, **row} for kind, rows in (("small", small), ("60", whole)) for row in rows]
        write(arguments.out, table, sweeps, draws=arguments.draws)
    print_table(table, columns=list(table[0]))


if __name__ == "__main__":
    main()
