"""What a third comparison saves and loses, on every recorded grid: whole, as small sweeps, and as short trainings.

Sweeps, rows and draws are those of ``early_exit_study``, ``small_sweeps`` and ``short_sweeps``; each is decided twice,
by the default rule and by the same rule with two comparisons.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grid, read_grids
from benchmarks.sweeps.early_exit_study import outcome
from benchmarks.sweeps.short_sweeps import CURVES, SHORT_CURVES, rows_of
from benchmarks.sweeps.small_sweeps import CHOSEN_ON, WITHOUT_EVALUATIONS, small_rows, whole_rows
from cohort.tuning import EarlyExitSettings

TWICE, THRICE = EarlyExitSettings(finish_fraction=1.0), EarlyExitSettings()
NEAR = 1.01
# of these a winner counts as the same
_SAME = 1 + 1e-7


def sweeps_of(settings: EarlyExitSettings) -> Iterator[dict[str, Any]]:
    """Yield the share saved and the ratio of the winner in every sweep, always in the same order."""
    for path in sorted(CURVES.glob("*_llama16M*_seed*")):
        grid = read_grid(path)
        row = outcome(grid, settings, coarse=True)
        kind = "whole grids, by ranks, chosen on" if grid.seed < 3 else "whole grids, by ranks, reported"
        yield _row(kind, grid, saved=row["samples_saved_percent"], ratio=row["best_loss_ratio"])
    long = read_grids(sorted(path for path in CURVES.glob("*.gz") if WITHOUT_EVALUATIONS not in path.name))
    for row in whole_rows(long, settings):
        yield _measured("whole grids, by rows", row)
    for row in small_rows(long, settings, draws=2 * CHOSEN_ON):
        yield _measured(f"small sweeps, {'chosen on' if row['draw'] < CHOSEN_ON else 'later draws'}", row)
    paths = sorted([*CURVES.glob("*.gz"), *SHORT_CURVES.rglob("*.gz")])
    sixty = [grid for grid in map(read_grid, paths) if len(grid.trials) == 60]
    for row in rows_of(sixty, settings, draws=2):
        which = "grids of 60" if row["kind"] == "60" else "12 to 16 trials"
        facts = {"rows": row["rows"], "draw": row["draw"], "set": row["set"], "seed": row["seed"]}
        yield {"kind": f"short trainings, {which}", **facts, "saved": row["saved_percent"], "ratio": row["ratio"]}


def _row(kind: str, grid: Grid, *, saved: float, ratio: float) -> dict[str, Any]:
    return {"kind": kind, "set": grid.name, "seed": grid.seed, "saved": saved, "ratio": ratio}


def _measured(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: row[key] for key in ("set", "seed", "trials", "rows", "draw") if key in row}
    return {"kind": kind, **facts, "saved": row["samples_saved_percent"], "ratio": row["best_loss_ratio"]}


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what both rules save and lose in sweeps of one kind."""
    found: dict[str, Any] = {"sweeps": len(rows)}
    for name in ("twice", "thrice"):
        saved, ratios = [row[f"saved_{name}"] for row in rows], [row[f"ratio_{name}"] for row in rows]
        found |= {
            f"saved_mean_{name}": statistics.fmean(saved),
            f"ratio_mean_{name}": statistics.fmean(ratios),
            f"ratio_max_{name}": max(ratios),
            f"within_1_percent_{name}": sum(ratio <= NEAR for ratio in ratios),
        }
    changes = [row["ratio_thrice"] / row["ratio_twice"] for row in rows]
    return found | {"lower": sum(change > _SAME for change in changes), "most": max(changes)}


def main() -> None:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "third_comparison.json")
    arguments = parser.parse_args()
    sweeps = []
    for one, other in zip(sweeps_of(TWICE), sweeps_of(THRICE), strict=True):
        facts = {key: value for key, value in one.items() if key not in ("saved", "ratio")}
        measured = {
            f"{key}_{name}": row[key] for name, row in (("twice", one), ("thrice", other)) for key in ("saved", "ratio")
        }
        sweeps.append({**facts, **measured})
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in sweeps:
        kinds.setdefault(row["kind"], []).append(row)
    short = kinds["short trainings, grids of 60"]
    kinds["short trainings, grids of 60, 320 rows"] = [row for row in short if row["rows"] == 320]
    table = [{"table": "kinds", "kind": kind, **totals(rows)} for kind, rows in kinds.items()]
    print_table(table, columns=list(table[0]))
    by_kind = {row["kind"]: row for row in table}
    row_320 = by_kind["short trainings, grids of 60, 320 rows"]
    write_result(
        arguments.out,
        question="What does the third comparison of the default rule save and lose, next to two?",
        headline={
            "third_saved_points_60_at_320_rows": row_320["saved_mean_thrice"] - row_320["saved_mean_twice"],
            "third_ratio_mean_change_max": max(row["ratio_mean_thrice"] / row["ratio_mean_twice"] for row in table),
            "third_ratio_max_change_max": max(row["ratio_max_thrice"] / row["ratio_max_twice"] for row in table),
            "third_sweeps_no_longer_within_1_percent": sum(
                row["within_1_percent_twice"] - row["within_1_percent_thrice"] for row in table
            ),
        },
        rows=[*table, *({"table": "sweeps", **row} for row in sweeps)],
        notes={
            "real": "the losses of every trial at every evaluation; rows of grids that kept them",
            "drawn": "other rows, by benchmarks/sweeps/row_noise.json",
        },
    )


if __name__ == "__main__":
    main()
