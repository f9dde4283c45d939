"""The tables of the report: trials, decisions, compute and notes about the data, as values for the template."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cohort.core.units import counted, format_duration
from cohort.report.labels import is_number, percent_label, value_label
from cohort.report.trial_columns import Medium, ShownColumn, shown_columns
from cohort.runs.facts import RunFacts
from cohort.runs.records import LoggedDecision
from cohort.runs.results.provenance import data_settings, evaluation_settings, linears_text, prompt_template
from cohort.runs.results.results import RankedTrial, RunResults
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER

__all__ = ["compute_rows", "data_notes", "decision_rows", "trial_table"]

# longer texts are wrapped, so that one error does not make the table as wide as itself
_WRAPPED_FROM = 40


def trial_table(results: RunResults) -> dict[str, Any]:
    """Return the table of trials: columns and rows, best first."""
    columns = shown_columns(results.ranked, medium=Medium.REPORT, metric_label=results.metric_label)
    settings = [entry.trial.parameters for entry in results.ranked]
    # one value in all trials needs no column, which would push the last ones off the page
    same = {
        name: settings[0][name]
        for name in (settings[0] if settings else ())
        if all(name in one and one[name] == settings[0][name] for one in settings)
    }
    columns = [column for column in columns if column.name not in same]
    numeric = [
        all(value is None or is_number(value) for value in map(column.value, results.ranked)) for column in columns
    ]
    return {
        "columns": [{"label": column.name, "numeric": is_n} for column, is_n in zip(columns, numeric, strict=True)],
        "rows": [_trial_row(entry, columns=columns, results=results) for entry in results.ranked],
        "same": ", ".join(f"{name} {value_label(value)}" for name, value in same.items()),
    }


def _trial_row(entry: RankedTrial, *, columns: Sequence[ShownColumn], results: RunResults) -> dict[str, Any]:
    setting = ", ".join(f"{name} {value_label(value)}" for name, value in entry.trial.parameters.items())
    return {
        "trial_id": entry.trial.trial_id,
        "summary": f"Trial {entry.trial.trial_id}, place {entry.rank}: {entry.why}. {setting}",
        "is_best": results.best is not None and results.best.trial_id == entry.trial.trial_id,
        "cells": [_cell(column, entry) for column in columns],
    }


def _cell(column: ShownColumn, entry: RankedTrial) -> dict[str, Any]:
    value = column.value(entry)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return {"shown": "" if value is None else str(value), "key": "", "numeric": True, "wrap": False}
    shown, numeric = column.text(entry) if column.text else value_label(value, digits=4), is_number(value)
    # the key is what a click on the heading sorts by; text sorts by itself
    key = value if numeric else None
    return {"shown": shown, "key": key, "numeric": numeric, "wrap": not numeric and len(shown) > _WRAPPED_FROM}


def decision_rows(decisions: Sequence[LoggedDecision]) -> tuple[list[dict[str, Any]], str]:
    """Return the decisions without new bests, and a line that counts them all."""
    # new bests are many and say little: as rows they would hide the decisions that ended trials
    rows = [
        {
            "at": format_duration(entry.seconds),
            "trial_id": entry.decision.trial_id,
            "step": entry.decision.step,
            "kind": entry.decision.kind.value,
            "reason": str(entry.decision.reason),
            "rule": entry.decision.rule,
            "numbers": "; ".join(
                [
                    *([entry.decision.message] if entry.decision.message else []),
                    *(f"{name} {value:.4g}" for name, value in entry.decision.numbers.items()),
                ]
            ),
        }
        for entry in decisions
        if entry.decision.kind is not DecisionKind.NEW_BEST
    ]
    stops = Counter(str(e.decision.reason) for e in decisions if e.decision.kind is DecisionKind.STOP)
    new_bests = len(decisions) - len(rows)
    parts = [
        f"{count} {reason}" if reason == STOPPED_BY_USER else f"{count} stopped as {reason}"
        for reason, count in stops.most_common()
    ]
    if new_bests:
        parts.append(f"{counted(new_bests, 'new best')} of a trial (not listed)")
    return rows, (", ".join(parts) + "." if parts else "No trial was stopped.")


def compute_rows(results: RunResults) -> list[dict[str, str]]:
    """Return the comparison with the full grid, a row for each count."""
    # evaluated tokens have no full-grid count: the full grid is counted without any evaluation
    compute = results.compute

    def row(label: str, spent: float, planned: float | None) -> dict[str, str]:
        return {
            "label": label,
            "spent": f"{spent:,.0f}",
            "planned": "–" if planned is None else f"{planned:,.0f}",
            "share": percent_label(spent / planned) if planned else "–",
        }

    return [
        row("optimizer steps", compute.trained_steps, compute.planned_steps),
        row("training examples", compute.trained_samples, compute.planned_samples),
        row("tokens trained", compute.trained_tokens, compute.planned_tokens),
        row("tokens evaluated", compute.evaluation_tokens, None),
        row("cost in tokens of training", compute.cost_tokens, compute.planned_tokens),
    ]


def data_notes(facts: RunFacts) -> dict[str, Any]:
    """Return the counts and problems of the data report, and how rows were read and measured."""
    inputs, counted_names = facts.inputs, {name.replace("_", " ") for name in facts.inputs.data_counts or {}}
    adapted = linears_text(facts)
    settings = {name: value for name, value in data_settings(facts).items() if name not in counted_names}
    return {
        "settings": [(name.replace("_", " "), value_label(value)) for name, value in settings.items()],
        "template": prompt_template(facts),
        "evaluation": [
            (name.replace("_", " "), value_label(value))
            for name, value in (*evaluation_settings(facts).items(), *([("adapted", adapted)] if adapted else []))
        ],
        "counts": [(name.replace("_", " "), value_label(count)) for name, count in (inputs.data_counts or {}).items()],
        "problems": inputs.data_problems or (),
    }
