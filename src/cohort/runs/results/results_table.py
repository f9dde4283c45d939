"""The table of trials: every column, for results.csv, ``--json``, the terminal and the report.

To add a column, add an entry to ``FILE_COLUMNS``, and one to ``SHOWN_COLUMNS`` if people should see it in a table.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Flag, auto
from pathlib import Path
from typing import Any

from cohort.core.durable_files import atomic_file
from cohort.core.units import format_count
from cohort.runs.records import JsonValue, TrialRecord
from cohort.runs.results.results import RankedTrial, RunResults
from cohort.runs.results.verdicts import verdicts
from cohort.tuning.early_exit import reason_of
from cohort.tuning.objective_metric import LOSS, label_of
from cohort.tuning.trial_status import TrialStatus

__all__ = ["Column", "Medium", "finite_values", "results_json", "shown_columns", "write_results_csv"]


class Medium(Flag):
    """Where people read the table."""

    TERMINAL = auto()
    REPORT = auto()


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table of trials.

    Attributes:
        name: Its heading, and its key in ``--json``.
        value: What a trial has in it.
        text: What people read in place of the value.
        each: Where values are mappings, the headings of a column for each of their names; ``--json`` keeps the mapping.
        in_csv: Whether results.csv has it.
        media: Which tables for people have it.
    """

    name: str
    value: Callable[[RankedTrial], Any]
    text: Callable[[RankedTrial], str] | None = None
    each: str = ""
    in_csv: bool = True
    media: Medium = Medium.TERMINAL | Medium.REPORT


def _outcome(trial: TrialRecord) -> str:
    ended = reason_of(trial.reason).label if trial.status is TrialStatus.STOPPED else trial.status.value
    return f"{ended}: {trial.message}" if trial.message else ended


def _final_columns(entry: RankedTrial) -> dict[str, float | None]:
    """Return each value of the comparison at the end with the ends of its interval, by the name of its column."""
    columns: dict[str, float | None] = {}
    for name, found in ({} if entry.final is None else entry.final.values).items():
        columns |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    return columns


def _size_columns(entry: RankedTrial) -> dict[str, float]:
    """Return the size of an adapter by the names of its columns; none where all trials are plain LoRA."""
    return {} if entry.size is None else asdict(entry.size)


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


_RANK = Column(name="rank", value=lambda entry: entry.rank)
_TRIAL = Column(name="trial", value=lambda entry: entry.trial.trial_id)
_PARAMETERS = Column(name="parameters", value=lambda entry: entry.trial.parameters, each="{}")
# in no file of numbers: results.csv has the loss and every metric, and one of them is this value
_BEST_VALUE = Column(name="best_value", value=lambda entry: entry.trial.best_value, in_csv=False)
_LOSS_OF_METRIC = Column(name=LOSS.label, value=lambda entry: entry.trial.best_loss)
_METRICS = Column(name="metrics", value=lambda entry: entry.trial.best_metrics, each="{}")

# the order of results.csv: programs may read columns by their place, so a new one comes last
FILE_COLUMNS = (
    _RANK,
    _TRIAL,
    Column(name="status", value=lambda entry: entry.trial.status.value),
    Column(name="reason", value=lambda entry: entry.trial.reason),
    _PARAMETERS,
    Column(name="seed", value=lambda entry: entry.trial.seed),
    Column(name="planned_steps", value=lambda entry: entry.trial.planned_steps),
    Column(name="steps", value=lambda entry: entry.trial.steps_done),
    Column(name="tokens", value=lambda entry: entry.trial.tokens),
    Column(name="eval_tokens", value=lambda entry: entry.trial.evaluation_tokens),
    Column(name="best_step", value=lambda entry: entry.trial.best_step),
    Column(name="eval_loss", value=lambda entry: entry.trial.best_loss),
    Column(name="metrics", value=lambda entry: entry.trial.best_metrics, each="eval_{}"),
    Column(name="last_loss", value=lambda entry: entry.trial.last_loss),
    Column(name="message", value=lambda entry: entry.trial.message),
    _BEST_VALUE,
    Column(name="why", value=lambda entry: entry.why, in_csv=False),
    Column(name="kept", value=lambda entry: entry.trial.is_protected, in_csv=False),
    Column(name="eval_rows", value=lambda entry: entry.evaluation_rows),
    Column(name="final_rows", value=lambda entry: entry.final_rows),
    Column(name="final", value=lambda entry: _final_columns(entry), each="final_{}"),
    Column(name="size", value=lambda entry: _size_columns(entry), each="{}"),
)

# only in tables of runs that compared their best trials at the end: the rank follows from it
_FINAL = Column(
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
    Column(
        name="size",
        value=lambda entry: {} if entry.size is None else {"parameters": entry.size.trainable_parameters},
        each="{}",
        media=Medium.REPORT,
    ),
    Column(name="best step", value=lambda entry: entry.trial.best_step, media=Medium.REPORT),
    Column(
        name="steps",
        value=lambda entry: entry.trial.steps_done,
        text=lambda entry: f"{entry.trial.steps_done}/{entry.trial.planned_steps}",
    ),
    Column(
        name="tokens",
        value=lambda entry: entry.trial.tokens,
        text=lambda entry: format_count(entry.trial.tokens),
        media=Medium.REPORT,
    ),
    Column(name="status", value=lambda entry: entry.trial.state, media=Medium.TERMINAL),
    Column(name="outcome", value=lambda entry: _outcome(entry.trial), media=Medium.REPORT),
)


def _spread(columns: Sequence[Column], ranked: Sequence[RankedTrial]) -> Iterator[Column]:
    """Replace a column of mappings by one column for each name, in the order the names first occur."""
    for column in columns:
        if not column.each:
            yield column
            continue
        for name in dict.fromkeys(name for entry in ranked for name in column.value(entry)):
            yield Column(name=column.each.format(name), value=_item(column.value, name))


# not a lambda in the loop above: it would see the loop's last name in every column
def _item(value: Callable[[RankedTrial], Any], name: str) -> Callable[[RankedTrial], Any]:
    return lambda entry: value(entry).get(name)


def shown_columns(ranked: Sequence[RankedTrial], *, medium: Medium, metric_label: str) -> list[Column]:
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
    return list(_spread([replaced.get(column, column) for column in columns], ranked))


def write_results_csv(path: Path, *, results: RunResults, is_flushed: bool = True) -> None:
    """Write the table of trials, best first.

    Args:
        is_flushed: False does not wait for the disk, which may have gigabytes of states to take first.

    Raises:
        StorageFullError: the disk is full; the file is as it was.
    """
    # hyperparameters and metrics of all trials: those of a conditional search space differ from trial to trial
    columns = list(_spread([column for column in FILE_COLUMNS if column.in_csv], results.ranked))
    with (
        atomic_file(path, is_flushed=is_flushed) as partial,
        partial.open("w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.writer(stream, lineterminator="\n")
        # the first line names the columns; a number that does not exist is an empty field, which pandas reads as NaN
        writer.writerow([column.name for column in columns])
        writer.writerows([_cell(column.value(entry)) for column in columns] for entry in results.ranked)


def _cell(value: JsonValue) -> str | int | float:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict) else value


def results_json(results: RunResults) -> dict[str, Any]:
    """Return what ``--json`` prints: plain values, strict JSON."""
    compute = results.compute
    trials = [{column.name: column.value(entry) for column in FILE_COLUMNS} for entry in results.ranked]
    best_id = None if results.best is None else results.best.trial_id
    whole: dict[str, Any] = {
        "metric": {"name": results.metric.name, "maximize": results.metric.maximize},
        "best": next((trial for trial in trials if trial["trial"] == best_id), None),
        "base_value": results.base_value,
        "default_value": results.default_value,
        "seconds": results.run_seconds,
        "search_ended": results.facts.search_ended,
        "compute": {
            "share_of_full_grid": compute.share_of_full_grid,
            "full_runs": compute.num_full_runs,
            "trained_tokens": compute.trained_tokens,
            "eval_tokens": compute.evaluation_tokens,
            "planned_tokens": compute.planned_tokens,
            "trained_samples": compute.trained_samples,
            "planned_samples": compute.planned_samples,
        },
        "trials": trials,
    }
    if results.facts.test is not None:
        whole["test"] = asdict(results.facts.test)
    if results.facts.finals is not None:
        whole["finals"] = asdict(results.facts.finals)
    if results.facts.finals is not None or results.facts.base_rows is not None:
        whole["verdicts"] = verdicts(results)
    cleaned: dict[str, Any] = finite_values(whole)
    return cleaned


def finite_values(value: Any) -> Any:
    """Return ``value`` with None for every NaN and Inf in it."""
    # Python writes NaN and Infinity, which other readers of JSON refuse
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite_values(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_values(inner) for inner in value]
    return value
