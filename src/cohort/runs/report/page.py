"""What the report page says, as plain values for its template."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cohort.core.units import format_count, format_duration
from cohort.runs.facts import Activity, InputFacts, RunState
from cohort.runs.records import JsonValue, LoggedDecision, TrialRecord, TrialStatus
from cohort.runs.report.outcomes import outcome_counts, outcome_of
from cohort.runs.report.svg import mark, number_label
from cohort.runs.results import RankedTrial, RunResults
from cohort.tuning.decisions import DecisionKind

__all__ = [
    "comparison",
    "compute_rows",
    "data_notes",
    "decision_rows",
    "headline",
    "legend",
    "trial_table",
    "value_label",
]

_ITEMS_SHOWN = 6


def value_label(value: JsonValue) -> str:
    """Return a hyperparameter or fact as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_label(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_label(inner)}" for name, inner in value.items())
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        # the names of all adapted linears would fill a page; run.db has them
        shown = [str(item) for item in value[:_ITEMS_SHOWN]]
        return ", ".join(shown) + (f" and {len(value) - len(shown)} more" if len(value) > len(shown) else "")
    return value if isinstance(value, str) else json.dumps(value)


def metric_value(value: float | None, *, results: RunResults) -> str:
    """Return a value of the task's metric; a share in [0, 1] other than a loss as a percentage."""
    if value is None:
        return "–"
    if results.metric.name != "loss" and results.metric.maximize and 0 <= value <= 1:
        return f"{100 * value:.1f} %"
    return f"{value:.4g}"


def comparison(results: RunResults) -> list[dict[str, Any]]:
    """Return bars for the base model, the worst, the default and the best trial, as far as they are known.

    What a rule stopped early says so: its value is not that of its full training.
    """
    worst = results.worst
    bars = [
        ("base model", results.base_value),
        ("worst" + _stopped(worst), worst.best_value if worst and len(results.ranked) > 1 else None),
        ("default" + _stopped(results.default_trial), results.default_value),
        ("best", results.best.best_value if results.best else None),
    ]
    known = [(label, value) for label, value in bars if value is not None and math.isfinite(value)]
    # one outlier must not flatten the other bars; the numbers beside them are exact
    longest = max((abs(value) for label, value in known if not label.startswith("worst")), default=0.0) or 1.0
    return [
        {
            "label": label,
            "value": metric_value(value, results=results),
            "percent": round(min(100.0, 100 * abs(value) / longest), 1),
            "is_best": label == "best",
            "is_early": label.endswith("¹"),
        }
        for label, value in known
    ]


def _stopped(trial: TrialRecord | None) -> str:
    return f" at {100 * trial.steps_done // trial.planned_steps} % ¹" if trial and _ended_early(trial) else ""


def _ended_early(trial: TrialRecord) -> bool:
    return trial.is_over and trial.status is not TrialStatus.COMPLETED


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def headline(results: RunResults) -> dict[str, Any]:
    """Return the cards: the best trial, the price, the time."""
    compute, facts = results.compute, results.facts
    best = None
    if results.best is not None:
        trial = results.best
        standing = outcome_of(trial).label if trial.is_over else trial.status.value
        best = {
            "trial_id": trial.trial_id,
            "value": metric_value(trial.best_value, results=results),
            "step": trial.best_step,
            "how": f"{standing}, {trial.steps_done} of {trial.planned_steps} steps",
            "place": "In best/, in PEFT's format." if facts.state is RunState.DONE else "Best so far.",
            "parameters": [(name, value_label(value)) for name, value in trial.parameters.items()],
        }
    runs = compute.num_full_runs
    longest = max(compute.planned_tokens, compute.cost_tokens, 1.0)
    lengths = [
        ("full grid", float(compute.planned_tokens), False),
        ("this sweep", compute.cost_tokens, True),
        ("one run", compute.planned_tokens / max(1, compute.num_trials), False),
    ]
    return {
        "best": best,
        "price": {
            "share": _percent(compute.share_of_full_grid),
            "candidates": "the one candidate" if compute.num_trials == 1 else f"all {compute.num_trials} candidates",
            "full_runs": "–" if runs is None else f"{runs:.1f}",
            "bars": [
                {
                    "label": label,
                    "value": f"{format_count(tokens)} tokens",
                    "percent": round(100 * tokens / longest, 1),
                    "is_best": is_best,
                }
                for label, tokens, is_best in lengths
            ],
        },
        "time": {
            "total": format_duration(results.run_seconds),
            "lines": [*_time_lines(results), *([results.search_ended] if results.search_ended else [])],
        },
    }


def _time_lines(results: RunResults) -> list[str]:
    spent = results.facts.seconds
    parts = [f"{activity} {format_duration(spent[activity])}" for activity in Activity if activity in spent]
    lines = [", ".join(parts)] if parts else []
    counts = outcome_counts(entry.trial for entry in results.ranked)
    lines.append("Trials: " + ", ".join(f"{count} {outcome.label}" for outcome, count in counts))
    return lines


def legend(results: RunResults) -> list[dict[str, Any]]:
    """Return the outcomes that occur, with their marks, and the best trial's star."""
    items = [
        {
            "name": outcome.name,
            "label": outcome.label,
            "count": count,
            "is_best": False,
            "mark": mark(outcome.shape, 0, 0, classes=""),
        }
        for outcome, count in outcome_counts(entry.trial for entry in results.ranked)
    ]
    if results.best is not None:
        star = mark("star", 0, 0, classes="")
        items.insert(0, {"name": "completed", "label": "best trial", "count": 0, "is_best": True, "mark": star})
    return items


def _cell(shown: str, *, key: float | str | None = None, numeric: bool = True, wrap: bool = False) -> dict[str, Any]:
    return {"shown": shown, "key": key, "numeric": numeric, "wrap": wrap}


def _number_cell(value: float | None, *, digits: int = 4) -> dict[str, Any]:
    if value is None or not math.isfinite(value):
        return _cell("" if value is None else str(value), key="")
    return _cell(f"{value:.{digits}g}", key=value)


def _trial_row(entry: RankedTrial, *, parameters: Sequence[str], metrics: Sequence[str], results: RunResults) -> Any:
    trial = entry.trial
    cells = [_cell(str(entry.rank)), _cell(str(trial.trial_id))]
    for name in parameters:
        value = trial.parameters.get(name)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        cells.append(_cell(value_label(value), key=number, numeric=number is not None))
    cells.append(_number_cell(trial.best_loss))
    cells += [_number_cell(trial.best_metrics.get(name)) for name in metrics]
    cells.append(_cell("" if trial.best_step is None else f"{trial.best_step:,}", key=trial.best_step))
    cells.append(_cell(f"{trial.steps_done:,} / {trial.planned_steps:,}", key=trial.steps_done))
    cells.append(_cell(format_count(trial.tokens), key=trial.tokens))
    outcome = outcome_of(trial).label if trial.is_over else trial.status.value
    detail = trial.message
    cells.append(_cell(outcome + (f": {detail}" if detail else ""), numeric=False, wrap=len(detail) > 40))
    setting = ", ".join(f"{name} {value_label(value)}" for name, value in trial.parameters.items())
    return {
        "trial_id": trial.trial_id,
        "summary": f"Trial {trial.trial_id}, place {entry.rank}: {entry.why}. {setting}",
        "is_best": results.best is not None and results.best.trial_id == trial.trial_id,
        "cells": cells,
    }


def trial_table(results: RunResults) -> dict[str, Any]:
    """Return the table of trials: columns and rows, best first."""
    trials = [entry.trial for entry in results.ranked]
    parameters = list(dict.fromkeys(name for trial in trials for name in trial.parameters))
    metrics = list(dict.fromkeys(name for trial in trials for name in trial.best_metrics))
    columns = [("place", True), ("trial", True)]
    columns += [
        (name, all(isinstance(trial.parameters.get(name), int | float) for trial in trials)) for name in parameters
    ]
    columns += [("val. loss", True), *((name, True) for name in metrics)]
    columns += [("best step", True), ("steps", True), ("tokens", True), ("outcome", False)]
    return {
        "columns": [{"label": label, "numeric": numeric} for label, numeric in columns],
        "rows": [
            _trial_row(entry, parameters=parameters, metrics=metrics, results=results) for entry in results.ranked
        ],
    }


def decision_rows(decisions: Sequence[LoggedDecision]) -> tuple[list[dict[str, Any]], str]:
    """Return the decisions but for new bests, which are many and say little, and a line that counts them all."""
    rows = [
        {
            "at": format_duration(entry.seconds),
            "trial_id": entry.decision.trial_id,
            "step": entry.decision.step,
            "kind": entry.decision.kind.value,
            "reason": str(entry.decision.reason),
            "rule": entry.decision.rule,
            "numbers": "; ".join(f"{name} {value:.4g}" for name, value in entry.decision.numbers.items())
            + entry.decision.message,
        }
        for entry in decisions
        if entry.decision.kind is not DecisionKind.NEW_BEST
    ]
    stops = Counter(str(e.decision.reason) for e in decisions if e.decision.kind is DecisionKind.STOP)
    new_bests = len(decisions) - len(rows)
    parts = [f"{count} stopped as {reason}" for reason, count in stops.most_common()]
    if new_bests:
        parts.append(f"{new_bests} new bests of a trial (not listed)")
    return rows, (", ".join(parts) + "." if parts else "No trial was stopped.")


def compute_rows(results: RunResults) -> list[dict[str, str]]:
    """Return the comparison with the full grid, a row for each count."""
    compute = results.compute

    def row(label: str, spent: float, planned: float | None) -> dict[str, str]:
        return {
            "label": label,
            "spent": f"{spent:,.0f}",
            "planned": "–" if planned is None else f"{planned:,.0f}",
            "share": _percent(spent / planned) if planned else "–",
        }

    return [
        row("optimizer steps", compute.trained_steps, compute.planned_steps),
        row("training examples", compute.trained_samples, compute.planned_samples),
        row("tokens trained", compute.trained_tokens, compute.planned_tokens),
        row("tokens evaluated", compute.evaluation_tokens, None),
        row("cost in tokens of training", compute.cost_tokens, compute.planned_tokens),
    ]


def data_notes(inputs: InputFacts) -> dict[str, Any]:
    """Return the counts and problems of the data report."""
    return {
        "counts": [(name.replace("_", " "), value_label(count)) for name, count in (inputs.data_counts or {}).items()],
        "problems": inputs.data_problems or (),
    }
