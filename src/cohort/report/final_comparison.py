"""The comparisons at the end of a run as tables: the winner and what it was compared with on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cohort.core.statistics.estimates import Estimate
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.results import RunResults
from cohort.runs.results.verdicts import chance_text, gain_over, gain_text
from cohort.tuning.objective_metric import LOSS

__all__ = ["final_comparisons"]


def final_comparisons(results: RunResults) -> list[dict[str, Any]]:
    """Return a table for each comparison that was made: on validation rows, and on test rows of tasks with some."""
    made = [("Final comparison", results.facts.finals), ("Test rows", results.facts.test)]
    return [
        _table(title, comparison, results=results)
        for title, comparison in made
        if comparison is not None and results.metric.name in comparison.winner.values
    ]


def _table(title: str, comparison: Comparison, *, results: RunResults) -> dict[str, Any]:
    metric = results.metric
    names = [metric.name] if metric.name == LOSS.name else [metric.name, LOSS.name]
    notes = [f"Measured on {comparison.rows_text}. In parentheses: the 95 % interval over other rows of the kind."]
    if comparison.note:
        notes.append(f"{comparison.note[:1].upper()}{comparison.note[1:]}.")
    if results.chance is not None:
        notes.append(f"Base model: {chance_text(results.chance, metric)}.")
    return {
        "title": title,
        "note": " ".join(notes),
        "columns": ["", "trial", "step", *(metric.label if name == metric.name else LOSS.label for name in names)],
        "rows": [
            {
                "cells": [
                    label,
                    *(["–", "–"] if entry.trial_id is None else [str(entry.trial_id), str(entry.step)]),
                    *(_measured(entry.values.get(name)) for name in names),
                ],
                "gain": "" if entry is comparison.winner else _gain_text(gain_over(entry, metric)),
                "is_best": entry is comparison.winner,
            }
            for label, entry in _contenders(comparison, results=results)
        ],
    }


def _contenders(comparison: Comparison, *, results: RunResults) -> Iterator[tuple[str, Contender]]:
    default_id = results.facts.task.default_trial_id
    yield "best", comparison.winner
    for entry in comparison.ranked[1:]:
        yield "default" if entry.trial_id == default_id else "finalist", entry
    for entry in comparison.others:
        if entry.trial_id is not None:
            yield "default", entry
        # a reference has no score of its own
        elif results.chance is None:
            yield "base model", entry


def _measured(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{found.value:.4g}" + ("" if found.low is None else f" ({found.low:.4g} to {found.high:.4g})")


def _gain_text(gain: Estimate) -> str:
    return f"{'' if gain.excludes_zero else 'within noise: '}{gain_text(gain, interval='')}"
