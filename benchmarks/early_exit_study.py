"""What early exit saves and loses on recorded grids: every rule, the reliability of early losses, other settings.

Needs the curves of ``record_curves.py`` and no GPU. Writes a result file, the tables of the page and its figures.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from curve_files import Grid, read_grids
from measure import RESULTS, print_table, write_result
from scipy.stats import spearmanr
from study_figures import draw_figures
from study_page import renew_page

from cohort.tuning import DecisionKind, EarlyExitSettings, ReplayReport, RuleName

CURVES = Path(__file__).parent / "curves"
DOCS = Path(__file__).resolve().parents[1] / "docs"
# ALTO Figure 16 varies the warm-up from 1 to 20 %
SHARES = (0.01, 0.02, 0.05, 0.10, 0.20)
TOP_SHARE = 0.25
# what a set must have between its median and its best to count, and what a rule may lose and must save
LEAST_SPREAD = 1.03
MOST_LOSS = 1.01
LEAST_SAVED = 72.0
NEVER = 10**6

PAPER = EarlyExitSettings(
    warmup_fraction=0.05,
    select_fraction=0.25,
    reselect_fraction=1.0,
    gap_threshold=0.1,
    overfitting_patience=2,
    overfitting_ignores_new_best=False,
)
RULES: Mapping[str, EarlyExitSettings] = {
    "patterns (default)": EarlyExitSettings(),
    "patterns (ALTO's settings)": PAPER,
    "selection alone": EarlyExitSettings(divergence_patience=NEVER, overfitting_patience=NEVER),
    "detectors alone": EarlyExitSettings(select_fraction=1.0),
    "halving": EarlyExitSettings(rule=RuleName.HALVING),
    "asha": EarlyExitSettings(rule=RuleName.ASHA),
    "hyperband": EarlyExitSettings(rule=RuleName.HYPERBAND),
    "median": EarlyExitSettings(rule=RuleName.MEDIAN),
    "patience": EarlyExitSettings(rule=RuleName.PATIENCE),
    "none": EarlyExitSettings(rule=RuleName.NONE),
}


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
        "saved_by": {
            reason.value: 100 * saved / report.samples_full for reason, saved in report.samples_saved_by.items()
        },
    }


def _went_on(report: ReplayReport, trial_id: int) -> bool:
    """Tell whether a trial was kept at its last barrier or never met one, and no rule that compares stopped it."""
    stops = {d.trial_id: d.reason.value for d in report.decisions if d.kind is DecisionKind.STOP}
    return stops.get(trial_id) != "underperforming"


def rule_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return the outcome of each rule on each grid."""
    return [{"rule": name, **outcome(grid, settings)} for name, settings in RULES.items() for grid in grids]


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
    """Return the settings among which the defaults are chosen."""
    found = {}
    for warmup, select in itertools.product((0.025, 0.03, 0.05, 0.075, 0.1), (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)):
        for name, gap in (("", 0.1), (", gap 0.3", 0.3), (", no detectors", None)):
            detectors = (
                {"divergence_patience": NEVER, "overfitting_patience": NEVER} if gap is None else {"gap_threshold": gap}
            )
            found[f"warm-up {warmup:.1%}, keep {select:.0%}{name}"] = EarlyExitSettings(
                warmup_fraction=warmup,
                select_fraction=select,
                **detectors,  # type: ignore[arg-type]
            )
    for warmup, factor in itertools.product((0.025, 0.05, 0.1), (2, 3, 4)):
        found[f"halving from {warmup:.1%} by {factor}"] = EarlyExitSettings(
            rule=RuleName.HALVING, warmup_fraction=warmup, reduction_factor=factor
        )
    return found


def settings_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return saved and lost of every setting, over all grids and by set."""
    rows = []
    for name, settings in settings_tried().items():
        try:
            found = [outcome(grid, settings, coarse=True) for grid in grids]
        except ValueError:  # evaluations of this length of warm-up were not recorded
            continue
        rows.append({"settings": name, **_totals(found), "by_set": _by_set(found, _totals)})
    return rows


def _totals(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    saved = [row["samples_saved_percent"] for row in found]
    ratios = [row["best_loss_ratio"] for row in found]
    return {
        "saved_min": min(saved),
        "saved_mean": statistics.fmean(saved),
        "ratio_mean": statistics.fmean(ratios),
        "ratio_max": max(ratios),
        "within_1_percent": statistics.fmean(ratio <= MOST_LOSS for ratio in ratios),
    }


def _by_set(
    found: Iterable[Mapping[str, Any]], total: Callable[[Sequence[Mapping[str, Any]]], dict[str, float]]
) -> dict[str, dict[str, float]]:
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        by_name.setdefault(row["set"], []).append(row)
    return {name: total(rows) for name, rows in by_name.items()}


def chosen_without(rows: Sequence[Mapping[str, Any]], left_out: str) -> Mapping[str, Any]:
    """Return the settings that would be chosen had one set not been seen.

    Among those that save enough on every other set, the smallest worst loss; then the most saved.
    """

    def cost(row: Mapping[str, Any]) -> tuple[bool, float, float]:
        others = [totals for name, totals in row["by_set"].items() if name != left_out]
        saves = min(totals["saved_min"] for totals in others) >= LEAST_SAVED
        return not saves, max(totals["ratio_max"] for totals in others), -sum(t["saved_mean"] for t in others)

    return min(rows, key=cost)


def cross_validation_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each set, the settings chosen on the others and what they do on it."""
    found = []
    for name in names if len(names) > 1 else ():
        chosen = chosen_without(rows, name)
        found.append({"left_out": name, "settings": chosen["settings"], **chosen["by_set"][name]})
    return found


def spread_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return best, median and worst of each grid, and whether it counts."""
    rows = []
    for grid in grids:
        best, median, worst = grid.spread
        best_trial = min(grid.trials, key=lambda trial: (trial.best, trial.trial_id))
        scale = float(grid.source["learning_rate_scale"])
        rows.append(
            {
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
    return {
        "samples_saved_percent_min": min(row["samples_saved_percent"] for row in default),
        "best_loss_ratio_max": max(row["best_loss_ratio"] for row in default),
        "best_loss_ratio_median": statistics.median(row["best_loss_ratio"] for row in default),
        "grids_within_1_percent_share": statistics.fmean(row["best_loss_ratio"] <= MOST_LOSS for row in default),
        "rank_correlation_at_5_percent_min": min(row["spearman"] for row in at_warmup),
        "best_in_kept_quarter_share": statistics.fmean(row["best_kept"] for row in at_warmup),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, nargs="+", default=sorted(CURVES.glob("*.json.gz")))
    parser.add_argument("--out", type=Path, default=RESULTS / "early_exit_study.json")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its figures are")
    return parser.parse_args()


def main() -> None:
    """Replay, print, write, draw."""
    arguments = _arguments()
    grids = read_grids(arguments.curves)
    spreads = spread_rows(grids)
    counting = {row["set"] for row in spreads} - {row["set"] for row in spreads if not row["counts"]}
    print_table(spreads, columns=list(spreads[0]))
    rules, ranks, settings = rule_rows(grids), early_rank_rows(grids), settings_rows(grids)
    print_table(
        rules, columns=["rule", "set", "seed", "samples_saved_percent", "best_loss_ratio", "best_trial_went_on"]
    )
    print_table(ranks, columns=list(ranks[0]))
    names = sorted({grid.name for grid in grids})
    crossed = cross_validation_rows(settings, names)
    best_first = sorted(settings, key=lambda row: (row["saved_min"] < LEAST_SAVED, row["ratio_max"]))
    totals = ["settings", "saved_min", "saved_mean", "ratio_mean", "ratio_max", "within_1_percent"]
    print_table(best_first[:25], columns=totals)
    if crossed:
        print_table(crossed, columns=["left_out", *totals])
    tables = {"spreads": spreads, "rules": rules, "ranks": ranks, "settings": best_first, "crossed": crossed}
    write_result(
        arguments.out,
        question="What does early exit save, and what does it cost in validation loss, on grids trained to their end?",
        headline=headline(rules, ranks, counting or set(names)),
        rows=[{"table": name, **row} for name in ("spreads", "rules", "ranks", "crossed") for row in tables[name]],
        notes={
            "curves": [path.name for path in arguments.curves],
            "sets_that_count": sorted(counting),
            "settings_tried": {row["settings"]: {key: row[key] for key in totals[1:]} for row in best_first},
        },
    )
    draw_figures(grids, rules=rules, ranks=ranks, folder=arguments.docs / "figures")
    renew_page(arguments.docs / "early-exit-study.md", tables)


if __name__ == "__main__":
    main()
