"""What early exit saves and loses on recorded grids: every rule, the reliability of early losses, other settings.

Needs the curves of ``record_curves.py`` and no GPU. Writes a result file, the tables of the page and its figures.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grids
from benchmarks.sweeps.study_figures import draw_figures
from benchmarks.sweeps.study_page import renew_page
from cohort.tuning import DecisionKind, EarlyExitSettings, ReplayReport

CURVES = Path(__file__).parent / "curves"
DOCS = REPOSITORY / "docs"
# ALTO Figure 16 varies the warm-up from 1 to 20 %
SHARES = (0.01, 0.02, 0.05, 0.10, 0.20)
TOP_SHARE = 0.25
# what a set must have between its median and its best to count, and what a rule may lose and must save
LEAST_SPREAD = 1.03
MOST_LOSS = 1.01
LEAST_SAVED = 72.0
NEVER = 10**6

PAPER = EarlyExitSettings(
    divergence="slopes",
    warmup_fraction=0.05,
    select_fraction=0.25,
    reselect_fraction=1.0,
    gap_threshold=0.1,
    overfitting_patience=2,
    overfitting_ignores_new_best=False,
)
RULES: Mapping[str, EarlyExitSettings] = {
    "patterns (default)": EarlyExitSettings(),
    "its selections alone": EarlyExitSettings(divergence_patience=NEVER, overfitting_patience=NEVER),
    "its first two selections": EarlyExitSettings(finish_fraction=1.0),
    "its detectors alone": EarlyExitSettings(select_fraction=1.0),
    "patterns (ALTO's settings)": PAPER,
    "ALTO's selection alone": PAPER.with_keys(divergence_patience=NEVER, overfitting_patience=NEVER),
    "ALTO's detectors alone": PAPER.with_keys(select_fraction=1.0),
    "halving": EarlyExitSettings(rule="halving"),
    "asha": EarlyExitSettings(rule="asha"),
    "hyperband": EarlyExitSettings(rule="hyperband"),
    "median": EarlyExitSettings(rule="median"),
    "patience": EarlyExitSettings(rule="patience"),
    "none": EarlyExitSettings(rule="none"),
}
# their decisions depend on who comes first, so every step is replayed
IN_ORDER = ("asha", "median")


def outcome(grid: Grid, settings: EarlyExitSettings, *, coarse: bool = False) -> dict[str, Any]:
    """Return what a rule saved and lost on one grid, and which reason saved how much."""
    report = grid.replay(settings, coarse=coarse)
    assert report.best is not None, "a recorded grid has finite losses"
    best_trial = min(grid.trials, key=lambda trial: (trial.best, trial.trial_id)).trial_id
    return {
        "set": grid.name,
        "seed": grid.seed,
        "samples_saved_percent": 100 * report.saved_share,
        "best_loss_ratio": report.best.value / grid.best,
        "best_trial_went_on": _went_on(report, best_trial),
        "saved_by": {reason: 100 * saved / report.samples_full for reason, saved in report.samples_saved_by.items()},
    }


def _went_on(report: ReplayReport, trial_id: int) -> bool:
    """Tell whether a trial was kept at its last barrier or never met one, and no rule that compares stopped it."""
    stops = {d.trial_id: d.reason for d in report.decisions if d.kind is DecisionKind.STOP}
    return stops.get(trial_id) != "underperforming"


def rule_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return the outcome of each rule on each grid."""
    return [
        {"rule": name, **outcome(grid, settings, coarse=settings.rule not in IN_ORDER and name != next(iter(RULES)))}
        for name, settings in RULES.items()
        for grid in grids
    ]


def early_rank_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return how losses at shares of the training foretell the end (ALTO Figures 7 and 16).

    ``spearman`` compares with the loss after the last step; ``coverage`` is the part of the true best quarter (by
    best checkpoint) that is in the early best quarter; ``best_kept`` whether the very best is; ``ratio_of_kept`` what
    going on with that quarter alone would cost.
    """
    rows = []
    for grid, share in itertools.product(grids, SHARES):
        try:
            early = [trial.loss_at(share) for trial in grid.trials]
        except ValueError:
            continue
        count = math.ceil(TOP_SHARE * len(early))
        bests = [trial.best for trial in grid.trials]
        kept, true = (set(sorted(range(len(early)), key=lambda i: (by[i], i))[:count]) for by in (early, bests))
        rows.append(
            {
                "set": grid.name,
                "seed": grid.seed,
                "share_percent": 100 * share,
                "spearman": float(spearmanr(early, [trial.final for trial in grid.trials]).statistic),
                "spearman_best": float(spearmanr(early, bests).statistic),
                "coverage": len(kept & true) / count,
                "best_kept": bests.index(min(bests)) in kept,
                "ratio_of_kept": min(bests[i] for i in kept) / grid.best,
            }
        )
    return rows


def settings_tried() -> dict[str, EarlyExitSettings]:
    """Return the settings among which the defaults were chosen."""
    twice = EarlyExitSettings(finish_fraction=1.0)
    found = {"ALTO's": PAPER, "default": EarlyExitSettings(), "two comparisons": twice}
    for at, kept in itertools.product((0.5, 0.6, 0.65, 0.7), (1 / 2, 2 / 3)):
        found[f"a third at {at:.0%}, {kept:.0%} go on"] = EarlyExitSettings(finish_at=at, finish_fraction=kept)
        found[f"a third at {at:.0%}, {kept:.0%} go on, whatever the noise"] = EarlyExitSettings(
            finish_at=at, finish_fraction=kept, finish_noise=0
        )
    for warmup, select in itertools.product((0.03, 0.05, 0.1), (0.15, 0.2, 0.25)):
        found[f"keep {select:.0%} at {warmup:.0%}"] = EarlyExitSettings(
            warmup_fraction=warmup, select_fraction=select, reselect_fraction=1.0
        )
    for warmup, (second, kept), select in itertools.product(
        (0.03, 0.05), ((0.15, 0.2), (0.2, 0.15), (0.2, 0.2)), (0.4, 0.5, 0.6)
    ):
        found[f"keep {select:.0%} at {warmup:.0%}, {kept:.0%} at {second:.0%}"] = EarlyExitSettings(
            warmup_fraction=warmup,
            select_fraction=select,
            reselect_at=second,
            reselect_fraction=kept / select,
            finish_fraction=1.0,
        )
    for gap, patience, ignores in itertools.product((0.1, 0.3), (2, 3, 4), (False, True)):
        name = (
            f"default, overfitting from a gap of {gap:g}, {patience} in a row{', new bests aside' if ignores else ''}"
        )
        found[f"two comparisons{name.removeprefix('default')}"] = twice.with_keys(
            gap_threshold=gap, overfitting_patience=patience, overfitting_ignores_new_best=ignores
        )
    for warmup, factor in itertools.product((0.05, 0.1), (2, 3)):
        found[f"halving from {warmup:.0%} by {factor}"] = EarlyExitSettings(
            rule="halving", warmup_fraction=warmup, reduction_factor=factor
        )
    return found


def settings_rows(chosen_on: Sequence[Grid], reported: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return saved and lost of every setting, on the grids that chose and on those that are reported."""
    rows = []
    for name, settings in settings_tried().items():
        row: dict[str, Any] = {"settings": name}
        for prefix, grids in (("chosen_on", chosen_on), ("reported", reported)):
            if grids:
                totals = _totals([outcome(grid, settings, coarse=True) for grid in grids])
                row |= {f"{prefix}_{key}": value for key, value in totals.items()}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["chosen_on_saved_min"] < LEAST_SAVED, row["chosen_on_ratio_max"]))


def _totals(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    saved = [row["samples_saved_percent"] for row in found]
    ratios = [row["best_loss_ratio"] for row in found]
    return {
        "saved_min": min(saved),
        "ratio_mean": statistics.fmean(ratios),
        "ratio_max": max(ratios),
        "within_1_percent": statistics.fmean(ratio <= MOST_LOSS for ratio in ratios),
    }


def spread_rows(grids: Sequence[Grid], *, role: str) -> list[dict[str, Any]]:
    """Return best, median and worst of each grid, and whether it counts."""
    rows = []
    for grid in grids:
        best, median, worst = grid.spread
        best_trial = min(grid.trials, key=lambda trial: (trial.best, trial.trial_id))
        scale = float(grid.source["learning_rate_scale"])
        rows.append(
            {
                "role": role,
                "set": grid.name,
                "seed": grid.seed,
                "base": grid.source.get("base_validation_loss"),
                "best": best,
                "median": median,
                "worst": worst,
                "counts": median > LEAST_SPREAD * best,
                "best_learning_rate": best_trial.learning_rate * scale,
                "best_r": best_trial.r,
                "best_batch_size": best_trial.batch_size,
            }
        )
    return rows


def headline(
    rules: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]], counting: set[str]
) -> dict[str, float]:
    """Return the numbers the study is about: the default rule over the sets that count."""
    default = [row for row in rules if row["rule"] == "patterns (default)" and row["set"] in counting]
    at_warmup = [row for row in ranks if row["share_percent"] == 5 and row["set"] in counting]
    by_set = {
        f"best_loss_ratio_max_{_key(name)}": max(row["best_loss_ratio"] for row in default if row["set"] == name)
        for name in sorted(counting)
    }
    return {
        "samples_saved_percent_min": min(row["samples_saved_percent"] for row in default),
        "best_loss_ratio_max": max(row["best_loss_ratio"] for row in default),
        "best_loss_ratio_median": statistics.median(row["best_loss_ratio"] for row in default),
        **by_set,
        "grids_within_1_percent_share": statistics.fmean(row["best_loss_ratio"] <= MOST_LOSS for row in default),
        "rank_correlation_at_5_percent_min": min(row["spearman"] for row in at_warmup),
        "best_in_kept_quarter_share": statistics.fmean(row["best_kept"] for row in at_warmup),
    }


def _key(name: str) -> str:
    """Return the name of a set as part of a key: without the model, with the epochs where they are not the usual."""
    plain, _, model = name.partition(" (")
    return "_".join([plain, *model.rstrip(")").split(", ")[1:]]).replace(" ", "_")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chosen-on", type=Path, nargs="+", default=sorted(CURVES.glob("*_llama16M_seed[012].*")))
    parser.add_argument("--reported", type=Path, nargs="*", default=sorted(CURVES.glob("*_llama16M*_seed[3-9].*")))
    parser.add_argument("--out", type=Path, default=RESULTS / "early_exit_study.json")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its figures are")
    return parser.parse_args()


def main() -> None:
    """Replay, print, write, draw."""
    arguments = _arguments()
    chosen_on, reported = read_grids(arguments.chosen_on), read_grids(arguments.reported)
    spreads = spread_rows(reported, role="reported") + spread_rows(chosen_on, role="chosen on")
    print_table(spreads, columns=list(spreads[0]))
    shown = reported or chosen_on
    own = [row for row in spreads if row["role"] == spreads[0]["role"]]
    counting = {row["set"] for row in own} - {row["set"] for row in own if not row["counts"]}
    rules, ranks = rule_rows(shown), early_rank_rows(shown)
    print_table(
        rules, columns=["rule", "set", "seed", "samples_saved_percent", "best_loss_ratio", "best_trial_went_on"]
    )
    print_table(ranks, columns=list(ranks[0]))
    settings = settings_rows(chosen_on, reported)
    print_table(settings, columns=list(settings[0]))
    before = rule_rows(chosen_on) if reported else []
    ranks_before = early_rank_rows(chosen_on) if reported else []
    tables = {"spreads": spreads, "rules": rules, "ranks": ranks, "settings": settings}
    further = {"rules_chosen_on": before, "ranks_chosen_on": ranks_before}
    write_result(
        arguments.out,
        question="What does early exit save, and what does it cost in validation loss, on grids trained to their end?",
        headline=headline(rules, ranks, counting or {grid.name for grid in shown}),
        rows=[{"table": name, **row} for name, rows in (tables | further).items() for row in rows],
        notes={
            "chosen_on": [path.name for path in arguments.chosen_on],
            "reported": [path.name for path in arguments.reported],
            "sets_that_count": sorted(counting),
        },
    )
    draw_figures(shown, rules=rules, ranks=ranks, folder=arguments.docs / "figures")
    renew_page(arguments.docs / "early-exit-study.md", tables | further)


if __name__ == "__main__":
    main()
