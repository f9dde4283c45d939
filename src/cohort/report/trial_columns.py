"""The table of trials for people: which columns the terminal and the report have, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto

from cohort.core.units import format_count
from cohort.runs.records import TrialRecord
from cohort.runs.results.results import RankedTrial
from cohort.runs.results.results_table import Column, spread_columns
from cohort.tuning.early_exit import reason_of
from cohort.tuning.objective_metric import LOSS, label_of
from cohort.tuning.trial_status import TrialStatus

__all__ = ["Medium", "ShownColumn", "shown_columns"]


class Medium(Flag):
    """Where people read the table."""

    TERMINAL = auto()
    REPORT = auto()


@dataclass(frozen=True, kw_only=True)
class ShownColumn(Column):
    """A column of a table for people.

    Attributes:
        text: What people read in place of the value.
        media: Which tables have it.
    """

    text: Callable[[RankedTrial], str] | None = None
    media: Medium = Medium.TERMINAL | Medium.REPORT


def _outcome(trial: TrialRecord) -> str:
    ended = reason_of(trial.reason).label if trial.status is TrialStatus.STOPPED else trial.status.value
    return f"{ended}: {trial.message}" if trial.message else ended


def _final_text(entry: RankedTrial) -> str:
    found = entry.final_value
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.value:.4g}"
    # three digits keep the table narrow; where they would put the value outside its interval, it takes a fourth
    holds = float(f"{found.low:.3g}") <= float(f"{found.value:.4g}") <= float(f"{found.high:.3g}")
    digits = 3 if holds else 4
    return f"{found.value:.4g} ({found.low:.{digits}g} to {found.high:.{digits}g})"


_RANK = ShownColumn(name="rank", value=lambda entry: entry.rank)
_TRIAL = ShownColumn(name="trial", value=lambda entry: entry.trial.trial_id)
_PARAMETERS = ShownColumn(name="parameters", value=lambda entry: entry.trial.parameters, each="{}")
_BEST_VALUE = ShownColumn(name="best_value", value=lambda entry: entry.trial.best_value)
_LOSS_OF_METRIC = ShownColumn(name=LOSS.label, value=lambda entry: entry.trial.best_loss)
_METRICS = ShownColumn(name="metrics", value=lambda entry: entry.trial.best_metrics, each="{}")

# only in tables of runs that compared their best trials at the end: the rank follows from it
_FINAL = ShownColumn(
    name="on {} rows",
    value=lambda entry: None if entry.final_value is None else entry.final_value.value,
    text=lambda entry: _final_text(entry),
)

SHOWN_COLUMNS = (
    _RANK,
    _TRIAL,
    _PARAMETERS,
    _BEST_VALUE,
    # next to the metric: it is the same one on more rows
    _FINAL,
    # a share says little by itself; where the loss is the metric, it has its column already
    _LOSS_OF_METRIC,
    _METRICS,
    ShownColumn(
        name="size",
        value=lambda entry: {} if entry.size is None else {"parameters": entry.size.trainable_parameters},
        each="{}",
        media=Medium.REPORT,
    ),
    ShownColumn(name="best step", value=lambda entry: entry.trial.best_step, media=Medium.REPORT),
    ShownColumn(
        name="steps",
        value=lambda entry: entry.trial.steps_done,
        text=lambda entry: f"{entry.trial.steps_done}/{entry.trial.planned_steps}",
    ),
    ShownColumn(
        name="tokens",
        value=lambda entry: entry.trial.tokens,
        text=lambda entry: format_count(entry.trial.tokens),
        media=Medium.REPORT,
    ),
    ShownColumn(name="status", value=lambda entry: entry.trial.state, media=Medium.TERMINAL),
    ShownColumn(name="outcome", value=lambda entry: _outcome(entry.trial), media=Medium.REPORT),
)


def shown_columns(ranked: Sequence[RankedTrial], *, medium: Medium, metric_label: str) -> list[ShownColumn]:
    """Return the columns of a table for people, in their order."""
    columns = [column for column in SHOWN_COLUMNS if medium in column.media]
    num_final_rows = next((entry.final_rows for entry in ranked if entry.final_value is not None), None)
    if num_final_rows is None:
        columns.remove(_FINAL)
    if metric_label == LOSS.label:
        columns.remove(_LOSS_OF_METRIC)

    def others(entry: RankedTrial) -> dict[str, float]:
        # the metric that selects has a column of its own
        labelled = {label_of(name): value for name, value in entry.trial.best_metrics.items()}
        return {label: value for label, value in labelled.items() if label != metric_label}

    replaced = {
        # next to r, "rank" would be read as the rank of an adapter
        _RANK: replace(_RANK, name="place"),
        _BEST_VALUE: replace(_BEST_VALUE, name=metric_label),
        # the comparison may have had no time for all rows
        _FINAL: replace(_FINAL, name=_FINAL.name.format(num_final_rows)),
        _METRICS: replace(_METRICS, value=others),
    }
    if medium is Medium.TERMINAL:
        # a terminal is narrow and always shows this column
        replaced[_LOSS_OF_METRIC] = replace(_LOSS_OF_METRIC, name="loss")
    return list(spread_columns([replaced.get(column, column) for column in columns], ranked))
