"""The cards on top of the report: bars of the best value, the base model, the worst and the default; price; time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.core.statistics.estimates import Estimate
from cohort.core.units import format_count, format_duration
from cohort.metrics import CHOICE_ACCURACY, METRIC_KINDS
from cohort.report.labels import percent_label, value_label
from cohort.report.outcomes import outcome_counts, outcome_of
from cohort.runs.facts import Activity, RunState
from cohort.runs.records import TrialRecord
from cohort.runs.results.results import RunResults
from cohort.runs.results.verdicts import comparison_lines, training_value_text, verdicts
from cohort.tuning.trial_status import TrialStatus

__all__ = ["headline_bars"]

_EARLY = "¹"
# done before the run's clock starts
_BEFORE = (Activity.TOKENISE, Activity.LOAD)
# a smaller rest of the run time is rounding
_LEAST_REST = 0.02


@dataclass(frozen=True, kw_only=True)
class _Bar:
    label: str
    value: str
    percent: float
    is_best: bool


def headline_bars(results: RunResults) -> dict[str, Any]:
    """Return what the template shows in the cards."""
    compute, runs = results.compute, results.compute.num_full_runs
    comparison = _comparison(results)
    return {
        "best": None if results.best is None else _best_card(results.best, results=results),
        "comparison": comparison,
        "early_note": _early_note(comparison, results=results),
        "price": {
            "share": percent_label(compute.share_of_full_grid),
            "evaluated": percent_label(compute.evaluated_share),
            "candidates": "the one candidate" if compute.num_trials == 1 else f"all {compute.num_trials} candidates",
            "full_runs": "–" if runs is None else f"{runs:.1f}",
            "bars": _price_bars(results),
            "trials": ", ".join(
                f"{count} {outcome.label}" for outcome, count in outcome_counts(entry.trial for entry in results.ranked)
            ),
            "ended": results.facts.search_ended,
        },
        "time": _time_card(results),
    }


def _metric_label(value: float | None, *, results: RunResults) -> str:
    """Return a value of the task's metric; one of Cohort's own, which are shares, as a percentage."""
    if value is None:
        return "–"
    # a function of the user may have any scale, whatever this value is
    if results.metric.name == CHOICE_ACCURACY or METRIC_KINDS.known(results.metric.name) is not None:
        return percent_label(value)
    return f"{value:.4g}"


def _best_card(trial: TrialRecord, *, results: RunResults) -> dict[str, Any]:
    standing = outcome_of(trial).label if trial.status.is_final else trial.status.value
    return {
        "trial_id": trial.trial_id,
        "value": _metric_label(_best_value(trial, results), results=results),
        "measured": _measured_lines(results, trial),
        "step": trial.best_step,
        "how": f"{standing}, {trial.steps_done} of {trial.planned_steps} steps",
        "place": "The best adapter, in best/" if results.facts.state is RunState.DONE else "The best so far",
        "parameters": [(name, value_label(value)) for name, value in trial.parameters.items()],
    }


def _best_value(trial: TrialRecord, results: RunResults) -> float | None:
    final = _final_value(results, trial.trial_id)
    return trial.best_value if final is None else final.value


def _final_value(results: RunResults, trial_id: int | None) -> Estimate | None:
    """Return the metric of a trial (None: the base model) on all rows, if the comparison at the end has it."""
    finals = results.facts.finals
    if finals is None:
        return None
    entry = finals.base if trial_id is None else finals.of_trial(trial_id)
    return None if entry is None else entry.values.get(results.metric.name)


def _measured_lines(results: RunResults, trial: TrialRecord) -> list[str]:
    """Return what to know of the best value: the verdicts, or the rows it was measured on before there are any."""
    if not comparison_lines(results):
        return [training_value_text(results, trial.best_value)]
    return [f"{text[:1].upper()}{text[1:]}." for text in verdicts(results)]


def _comparison(results: RunResults) -> Sequence[_Bar]:
    """Return a bar each for the base model, the worst, the default and the best trial, as far as they are known."""
    worst, default_id = results.worst, results.facts.task.default_trial_id
    base, default = _final_value(results, None), None if default_id is None else _final_value(results, default_id)
    reference = ("base model", results.base_value if base is None else base.value)
    bars = [
        reference if results.chance is None else ("chance", results.chance),
        ("worst" + _stopped(worst), worst.best_value if worst and len(results.ranked) > 1 else None),
        ("default" + _stopped(results.default_trial), results.default_value if default is None else default.value),
        ("best", _best_value(results.best, results) if results.best else None),
    ]
    known = [(label, value) for label, value in bars if value is not None and math.isfinite(value)]
    # one outlier must not flatten the other bars; the numbers next to them are exact
    longest = max((abs(value) for label, value in known if not label.startswith("worst")), default=0.0) or 1.0
    return [
        _Bar(
            label=label,
            value=_metric_label(value, results=results),
            percent=round(min(100.0, 100 * abs(value) / longest), 1),
            is_best=label == "best",
        )
        for label, value in known
    ]


def _early_note(bars: Sequence[_Bar], *, results: RunResults) -> str:
    """Return what the mark of a trial that was stopped early means; empty where no bar has it."""
    if not any(bar.label.endswith(_EARLY) for bar in bars):
        return ""
    note, num_rows = f"{_EARLY} stopped early, after this share of its steps", results.facts.inputs.evaluation_rows
    # such a trial is rarely a finalist: its value is from fewer rows than the best one's
    if num_rows is not None and results.facts.finals is not None and num_rows < results.facts.finals.num_rows:
        note += f"; where it was no finalist, on {num_rows} rows"
    return note


def _stopped(trial: TrialRecord | None) -> str:
    if trial is None or not trial.status.is_final or trial.status is TrialStatus.COMPLETED:
        return ""
    # marked, because its value is not what its full training would have given
    return f" at {100 * trial.steps_done // trial.planned_steps} % {_EARLY}"


def _price_bars(results: RunResults) -> Sequence[_Bar]:
    compute = results.compute
    lengths = {
        "full grid": float(compute.planned_tokens),
        "this sweep": compute.cost_tokens,
        "one run": compute.planned_tokens / max(1, compute.num_trials),
    }
    # evaluation can make a small sweep cost more than its full grid
    longest = max(compute.planned_tokens, compute.cost_tokens, 1.0)
    return [
        _Bar(
            label=label,
            value=f"{format_count(tokens)} tokens",
            percent=round(100 * tokens / longest, 1),
            is_best=label == "this sweep",
        )
        for label, tokens in lengths.items()
    ]


def _time_card(results: RunResults) -> dict[str, Any]:
    """Return the run time with its parts, and apart from it what a process does before the run's clock starts."""
    spent, whole = results.facts.seconds, results.run_seconds
    parts = {activity.value: spent[activity] for activity in Activity if activity in spent and activity not in _BEFORE}
    # deciding, writing checkpoints, waiting for a person
    if parts and (rest := whole - sum(parts.values())) >= _LEAST_REST * whole:
        parts["other"] = rest
    before = [f"{activity} {format_duration(spent[activity])}" for activity in _BEFORE if activity in spent]
    longest = max([whole, *parts.values()]) or 1.0
    bars = [
        _Bar(label=name, value=format_duration(taken), percent=round(100 * taken / longest, 1), is_best=name == "train")
        for name, taken in parts.items()
    ]
    return {"total": format_duration(whole), "bars": bars, "before": ", ".join(before)}
