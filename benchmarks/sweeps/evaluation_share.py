"""What evaluations of a short sweep cost, and what evaluating less often or on fewer rows costs its result.

Three questions: the share of the compute that a sweep of 60 trials plans for evaluations, by its training rows; what
the default rule saves and returns on recorded grids at fewer and fewer evaluation times; and how far the winner of its
two comparisons is from the best trial if only some rows are evaluated, on the grids that kept each row's loss. No GPU.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.sweeps.curve_files import Grid, read_grids
from benchmarks.sweeps.study_page import markdown_table, renew_between
from benchmarks.sweeps.sweep_grid import plan_grid
from cohort.tuning import EarlyExitSettings, EvaluationSettings, plan_evaluation_rows
from cohort.tuning.early_exit.first_comparison import FirstComparison
from cohort.tuning.evaluation_times import EvaluationPlan, EvaluationTimes, Workload, evaluated_at
from cohort.tuning.share_counts import ceil_share

CURVES = Path(__file__).parent / "curves"
PAGE = REPOSITORY / "docs" / "early-exit-study.md"
TRAINING_ROWS = (160, 320, 640, 1280, 2560)
# as the product does
ENOUGH_ROWS, FEWEST_ROWS, FEWEST_ROWS_BEFORE = 16, 8, 16
EVALUATED_ROWS = (4, 8, 16, 32)
DRAWS = 500


def plan_rows() -> list[dict[str, Any]]:
    """Return the planned share of a sweep over the grid of 60, before and now; rows are all of the same length."""
    rows = []
    for count, name in itertools.product(TRAINING_ROWS, ("rows alone", "times, then rows")):
        is_now = name != "rows alone"
        plan = _planned(count, is_now=is_now)
        rows.append(
            {
                "table": "plans",
                "training_rows": count,
                "thinned": name,
                "evaluation_rows": plan.num_rows,
                "times": plan.num_evaluations,
                "share_percent": 100 * _share(count, plan),
            }
        )
    return rows


def _planned(count: int, *, is_now: bool) -> EvaluationPlan:
    early_exit, trials = EarlyExitSettings(), plan_grid(count)
    compared = _first_comparison(count)
    return plan_evaluation_rows(
        [Workload(candidate=trial.candidate, tokens_per_step=float(trial.spec.batch_size)) for trial in trials],
        num_available=count // 4,
        mean_tokens_per_row=1.0,
        settings=EvaluationSettings(),
        kept_share=early_exit.kept_share(),
        kept_at=compared.kept_at,
        milestones=compared.milestones if is_now else None,
        evaluations_in_warmup=compared.evaluations_in_warmup,
        enough_rows=ENOUGH_ROWS,
        min_rows=FEWEST_ROWS if is_now else FEWEST_ROWS_BEFORE,
    )


def _first_comparison(count: int) -> FirstComparison:
    fewest = min(trial.spec.num_steps for trial in plan_grid(count))
    return FirstComparison.of(EarlyExitSettings(), fewest_steps=fewest)


def _share(count: int, plan: EvaluationPlan) -> float:
    """Return the compute of evaluations over that of training, counted trial by trial after each comparison."""
    compared = _first_comparison(count)
    evaluated = trained = 0.0
    for trial in plan_grid(count):
        candidate = trial.candidate if plan.times is None else evaluated_at(trial.candidate, plan.times)
        steps = candidate.planned_steps
        evaluated += sum(compared.kept_at((step - 1) / steps) for step in candidate.evaluation_steps)
        trained += trial.spec.batch_size * sum(compared.kept_at(step / steps) for step in range(steps))
    return 0.5 * plan.num_rows * evaluated / trained


def times_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return what the default rule saves and returns on each grid, evaluated less and less often."""
    settings = EarlyExitSettings()
    full = EvaluationTimes.of(EvaluationSettings())
    levels = [full, *full.thinner(settings.milestones or ())]
    rows = []
    for grid, times in itertools.product(grids, levels):
        report = grid.replay(settings, coarse=True, times=times)
        assert report.best is not None, "a recorded grid has finite losses"
        rows.append(
            {
                "table": "times",
                "set": grid.name,
                "seed": grid.seed,
                "times": len(times.steps(200, warmup=10)),
                "saved_percent": 100 * report.saved_share,
                "best_loss_ratio": report.best.value / grid.best,
            }
        )
    return rows


def draw_rows(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """Return how far above the best trial the winner ends if comparisons read few rows, drawn again and again."""
    rows = []
    for grid in (grid for grid in grids if grid.trials[0].row_losses):
        tokens = np.array(grid.source["row_tokens"], dtype=float)
        losses = [_losses_at(grid, share) for share in (0.05, 0.2, 1.0)]
        final = losses[-1].sum(axis=1) / tokens.sum()
        for count in (*EVALUATED_ROWS, len(tokens)):
            ratios: list[float] = []
            for draw in range(DRAWS if count < len(tokens) else 1):
                chosen = np.random.default_rng(draw).choice(len(tokens), size=count, replace=False)
                early, later = (part[:, chosen].sum(axis=1) for part in losses[:2])
                kept = _best(early, range(len(early)), share=0.5)
                kept = _best(later, kept, share=0.3)
                # the few that are left are compared on all rows at the end
                ratios.append(float(final[_best(final, kept, share=1.0)[0]] / final.min()))
            rows.append(
                {
                    "table": "rows",
                    "set": grid.name,
                    "seed": grid.seed,
                    "evaluated_rows": count,
                    "of_rows": len(tokens),
                    "ratio_mean": statistics.fmean(ratios),
                    "ratio_90_percent": float(np.quantile(ratios, 0.9)),
                    "ratio_max": max(ratios),
                }
            )
    return rows


def _losses_at(grid: Grid, share: float) -> Any:
    return np.array([trial.row_losses[ceil_share(share, trial.planned_steps)] for trial in grid.trials])


def _best(losses: Any, among: Sequence[int], *, share: float) -> list[int]:
    ranked = sorted(among, key=lambda trial: (losses[trial], trial))
    return ranked[: math.ceil(share * len(ranked))]


def _times_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for times in sorted({row["times"] for row in rows}, reverse=True):
        own = [row for row in rows if row["times"] == times]
        ratios = [row["best_loss_ratio"] for row in own]
        found.append(
            {
                "times": times,
                "grids": len(own),
                "saved_min": min(row["saved_percent"] for row in own),
                "saved_mean": statistics.fmean(row["saved_percent"] for row in own),
                "ratio_median": statistics.median(ratios),
                "ratio_mean": statistics.fmean(ratios),
                "ratio_max": max(ratios),
            }
        )
    return found


def _rows_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "evaluated_rows": count,
            "grids": len(own),
            "ratio_mean": statistics.fmean(row["ratio_mean"] for row in own),
            "ratio_90_percent": max(row["ratio_90_percent"] for row in own),
            "ratio_max": max(row["ratio_max"] for row in own),
        }
        for count in sorted({row["evaluated_rows"] for row in rows})
        for own in [[row for row in rows if row["evaluated_rows"] == count]]
    ]


def main() -> None:
    """Plan, replay, draw, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=Path, nargs="+", default=sorted(CURVES.glob("*_seed*.json.gz")))
    parser.add_argument("--out", type=Path, default=RESULTS / "evaluation_share.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    grids = read_grids(arguments.curves)
    plans, times, draws = plan_rows(), times_rows(grids), draw_rows(grids)
    by_times, by_rows = _times_summary(times), _rows_summary(draws)
    for table in (plans, by_times, by_rows):
        print_table(table, columns=list(table[0]))
    share = {(row["training_rows"], row["thinned"]): row["share_percent"] for row in plans}
    write_result(
        arguments.out,
        question="What share of a short sweep do evaluations take, and what do fewer of them cost its result?",
        headline={
            "share_percent_at_320_rows": share[320, "times, then rows"],
            "share_percent_at_320_rows_before": share[320, "rows alone"],
            "ratio_mean_full": by_times[0]["ratio_mean"],
            "ratio_mean_comparisons_alone": by_times[-1]["ratio_mean"],
            **{f"ratio_mean_{row['evaluated_rows']}_rows": row["ratio_mean"] for row in by_rows[1:3]},
        },
        rows=[*plans, *times, *draws],
        notes={"curves": [path.name for path in arguments.curves], "times": by_times, "rows": by_rows},
    )
    renew_between(
        arguments.page,
        {
            "evaluation_plans": _page_table(
                plans,
                {"training_rows": "training rows", "thinned": "thinned", "evaluation_rows": "rows evaluated"}
                | {"times": "times in a trial", "share_percent": "share, %"},
            ),
            "evaluation_times": _page_table(
                by_times,
                {"times": "times in a trial", "saved_min": "saved, least %", "saved_mean": "saved, mean %"}
                | {"ratio_median": "ratio, median", "ratio_mean": "ratio, mean", "ratio_max": "ratio, worst"},
            ),
            "evaluation_rows": _page_table(
                by_rows,
                {"evaluated_rows": "rows", "ratio_mean": "ratio, mean", "ratio_90_percent": "ratio, 90 % of draws"}
                | {"ratio_max": "ratio, worst"},
            ),
        },
    )


def _page_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    def text(key: str, value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:.4f}" if key.startswith("ratio") else f"{value:.1f}"

    return markdown_table(list(columns.values()), [[text(key, row[key]) for key in columns] for row in rows])


if __name__ == "__main__":
    main()
