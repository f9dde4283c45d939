"""The table of trials for programs: every column of results.csv and ``--json``.

To add a column, add an entry to ``FILE_COLUMNS``; what people see is in :mod:`cohort.report.trial_columns`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cohort.core.durable_files import atomic_file
from cohort.runs.records import JsonValue
from cohort.runs.results.results import RankedTrial, RunResults
from cohort.runs.results.verdicts import verdicts

__all__ = ["FILE_COLUMNS", "Column", "finite_values", "results_json", "spread_columns", "write_results_csv"]


AnyColumn = TypeVar("AnyColumn", bound="Column")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table of trials.

    Attributes:
        name: Its heading, and its key in ``--json``.
        value: What a trial has in it.
        each: Where values are mappings, the headings of a column for each of their names; ``--json`` keeps the mapping.
        in_csv: Whether results.csv has it.
    """

    name: str
    value: Callable[[RankedTrial], Any]
    each: str = ""
    in_csv: bool = True


def _final_columns(entry: RankedTrial) -> dict[str, float | None]:
    """Return each value of the comparison at the end with the ends of its interval, by the name of its column."""
    columns: dict[str, float | None] = {}
    for name, found in ({} if entry.final is None else entry.final.values).items():
        columns |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    return columns


def _size_columns(entry: RankedTrial) -> dict[str, float]:
    """Return the size of an adapter by the names of its columns; none where all trials are plain LoRA."""
    return {} if entry.size is None else asdict(entry.size)


# the order of results.csv: programs may read columns by their place, so a new one comes last
FILE_COLUMNS = (
    Column(name="rank", value=lambda entry: entry.rank),
    Column(name="trial", value=lambda entry: entry.trial.trial_id),
    Column(name="status", value=lambda entry: entry.trial.status.value),
    Column(name="reason", value=lambda entry: entry.trial.reason),
    Column(name="parameters", value=lambda entry: entry.trial.parameters, each="{}"),
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
    # in no file of numbers: results.csv has the loss and every metric, and one of them is this value
    Column(name="best_value", value=lambda entry: entry.trial.best_value, in_csv=False),
    Column(name="why", value=lambda entry: entry.why, in_csv=False),
    Column(name="kept", value=lambda entry: entry.trial.is_protected, in_csv=False),
    Column(name="eval_rows", value=lambda entry: entry.evaluation_rows),
    Column(name="final_rows", value=lambda entry: entry.final_rows),
    Column(name="final", value=lambda entry: _final_columns(entry), each="final_{}"),
    Column(name="size", value=lambda entry: _size_columns(entry), each="{}"),
)


def spread_columns(columns: Iterable[AnyColumn], ranked: Sequence[RankedTrial]) -> Iterator[AnyColumn]:
    """Replace a column of mappings by one column for each name, in the order the names first occur."""
    for column in columns:
        if not column.each:
            yield column
            continue
        for name in dict.fromkeys(name for entry in ranked for name in column.value(entry)):
            yield replace(column, name=column.each.format(name), value=_item(column.value, name), each="")


# not a lambda in the loop above: it would see the loop's last name in every column
def _item(value: Callable[[RankedTrial], Any], name: str) -> Callable[[RankedTrial], Any]:
    return lambda entry: value(entry).get(name)


def write_results_csv(path: Path, *, results: RunResults, is_flushed: bool = True) -> None:
    """Write the table of trials, best first.

    Args:
        is_flushed: False does not wait for the disk, which may have gigabytes of states to take first.

    Raises:
        StorageFullError: the disk is full; the file is as it was.
    """
    # hyperparameters and metrics of all trials: those of a conditional search space differ from trial to trial
    columns = list(spread_columns([column for column in FILE_COLUMNS if column.in_csv], results.ranked))
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
