"""Which trials each form of the divergence rule ends, what that saves and what it costs, on grids trained to their end.

Each form is replayed alone (no selection, no overfitting rule) and within the default rule. A stop costs something if
the trial's best checkpoint would have come later. Needs the curves of ``record_curves.py`` and no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grids
from benchmarks.sweeps.study_page import markdown_table, renew_between
from cohort.tuning import DecisionKind, EarlyExitSettings

CURVES = Path(__file__).parent / "curves"
PAGE = REPOSITORY / "docs" / "early-exit-study.md"
NEVER = 10**6
# settings of the whole rule by the name of the form in the tables
FORMS: Mapping[str, Mapping[str, Any]] = {
    "rise (default)": {},
    "slopes (ALTO)": {"divergence": "slopes"},
    "none": {"divergence_patience": NEVER},
}
# around the default, to show how far it is from losing something
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "no noise": {"rise_noise": 0.0},
    "no margin": {"rise_margin": 0.0},
    "noise twice": {"rise_noise": 2.0},
    "noise four times": {"rise_noise": 4.0},
    "margin of 5 %": {"rise_margin": 0.05},
    "margin of 20 %": {"rise_margin": 0.2},
    "three in a row": {"divergence_patience": 3},
}


def alone(grid: Grid, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the detector alone does to one grid.

    ``worst_stop`` is the largest ratio of a stopped trial's best loss until then to its best loss in the full grid.
    """
    report = grid.replay(EarlyExitSettings(select_fraction=1.0, overfitting_patience=NEVER, **keys), coarse=True)
    trials = {trial.trial_id: trial for trial in grid.trials}
    best = min(grid.trials, key=lambda trial: (trial.best, trial.trial_id)).trial_id
    stopped = {
        d.trial_id: _best_until(trials[d.trial_id], d.step / _steps(grid)) / trials[d.trial_id].best
        for d in report.decisions
        if d.kind is DecisionKind.STOP and d.reason == "diverging"
    }
    return {
        "stopped": len(stopped),
        "stopped_with_loss": sum(ratio > 1 for ratio in stopped.values()),
        "worst_stop": max(stopped.values(), default=1.0),
        "best_trial_stopped": best in stopped,
        "saved_alone_percent": 100 * report.saved_share,
    }


def within(grid: Grid, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the whole default rule with this detector saves and loses on one grid."""
    report = grid.replay(EarlyExitSettings(**keys), coarse=True)
    assert report.best is not None, "a recorded grid has finite losses"
    return {"saved_percent": 100 * report.saved_share, "best_loss_ratio": report.best.value / grid.best}


def _steps(grid: Grid) -> int:
    # every trial is replayed in the same number of steps
    return grid.curve(grid.trials[0], EarlyExitSettings()).candidate.planned_steps


def _best_until(trial: Any, share: float) -> float:
    # a rounded-up step may lie just past the share
    return min(loss for step, _, loss in trial.points if step < share * trial.planned_steps + 1)


def rows_of(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return the outcome of each form and variant on each grid."""
    return [
        {
            "form": name,
            "set": grid.name,
            "seed": grid.seed,
            "trials": len(grid.trials),
            **alone(grid, keys),
            **within(grid, keys),
        }
        for name, keys in {**FORMS, **VARIANTS}.items()
        for grid in grids
    ]


def summary(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each form over all grids."""
    by_form: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_form.setdefault(row["form"], []).append(row)
    # what the two selections and the overfitting rule lose is not the detector's
    without = {(row["set"], row["seed"]): row["best_loss_ratio"] for row in by_form["none"]}
    return [
        {
            "form": name,
            "grids": len(own),
            "stopped": sum(row["stopped"] for row in own),
            "stopped_with_loss": sum(row["stopped_with_loss"] for row in own),
            "worst_stop": max(row["worst_stop"] for row in own),
            "best_trial_stopped": sum(row["best_trial_stopped"] for row in own),
            "saved_alone_mean": statistics.fmean(row["saved_alone_percent"] for row in own),
            "saved_min": min(row["saved_percent"] for row in own),
            "saved_mean": statistics.fmean(row["saved_percent"] for row in own),
            "winner_worse": sum(row["best_loss_ratio"] > without[row["set"], row["seed"]] for row in own),
            "winner_loss_max": max(row["best_loss_ratio"] / without[row["set"], row["seed"]] for row in own),
        }
        for name, own in by_form.items()
    ]


def page_table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the page."""
    head = [
        "form",
        "stopped",
        "stopped before their best",
        "worst of them",
        "grids whose best trial is stopped",
        "saved alone, mean %",
        "whole rule: saved, least %",
        "saved, mean %",
        "grids with a worse winner",
        "worst winner",
    ]
    return markdown_table(
        head,
        [
            [
                row["form"],
                str(row["stopped"]),
                str(row["stopped_with_loss"]),
                f"{row['worst_stop']:.3f}",
                f"{row['best_trial_stopped']} of {row['grids']}",
                f"{row['saved_alone_mean']:.2f}",
                f"{row['saved_min']:.1f}",
                f"{row['saved_mean']:.1f}",
                str(row["winner_worse"]),
                f"{row['winner_loss_max']:.4f}",
            ]
            for row in found
        ],
    )


def main() -> None:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, nargs="+", default=sorted(CURVES.glob("*_seed*.json.gz")))
    parser.add_argument("--out", type=Path, default=RESULTS / "divergence_forms.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    grids = read_grids(arguments.curves)
    rows = rows_of(grids)
    found = summary(rows)
    print_table(found, columns=list(found[0]))
    by_form = {row["form"]: row for row in found}
    default, slopes = by_form["rise (default)"], by_form["slopes (ALTO)"]
    write_result(
        arguments.out,
        question="Which form of the divergence rule stops only trials that do not recover, and what does it save?",
        headline={
            "rise_trials_stopped_before_their_best": default["stopped_with_loss"],
            "slopes_trials_stopped_before_their_best": slopes["stopped_with_loss"],
            "rise_best_trial_stopped_grids": default["best_trial_stopped"],
            "slopes_best_trial_stopped_grids": slopes["best_trial_stopped"],
            "rise_samples_saved_percent_min": default["saved_min"],
            "slopes_samples_saved_percent_min": slopes["saved_min"],
        },
        rows=rows,
        notes={"curves": [path.name for path in arguments.curves], "summary": found},
    )
    renew_between(arguments.page, {"divergence": page_table(found)})


if __name__ == "__main__":
    main()
