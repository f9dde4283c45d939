"""The facts of a run as one typed record, and the only place that knows the keys they are stored under.

The table ``facts`` holds a row for each fact: its key, and its value as JSON. A fact that is None has no row. The key
is the field's name unless the field says otherwise; a group of facts (:class:`MachineFacts`, ...) spreads over its own
keys, so that a query for one of them needs no JSON path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Self

from cohort.runs.fact_groups import InputFacts, MachineFacts, MemoryFacts, PassFacts, RunPlaces, SizeFacts, TaskFacts
from cohort.runs.fact_values import FROM_JSON
from cohort.runs.packing_records import PackingRecord
from cohort.runs.records import JsonValue
from cohort.runs.results.comparison import Comparison
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric, TieRule

__all__ = ["Activity", "RunFacts", "RunState", "stored_facts"]


class RunState(StrEnum):
    """What the last process of a run left it in. A killed process leaves ``RUNNING``."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    DONE = "done"


class Activity(StrEnum):
    """What a run's time is spent on."""

    TOKENISE = "tokenise"
    LOAD = "load"
    TRAIN = "train"
    EVALUATE = "evaluate"
    GENERATE = "generate"
    COMPARE = "compare"
    """The best trials on all validation rows, and the winner on the test rows, once the search has ended."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run: all that its record holds but the log. A fact that is not known, or not known yet, is None.

    Attributes:
        task_name: The run directory's name when the run began.
        metric, metric_maximize: What the best checkpoint is chosen by.
        metric_ties: What is better at equal values of it.
        best_trial_id: The run's result, once it has ended.
        best_files: Its files, by their paths in ``best/``.
        finals: The best trials on all validation rows, which chose the result; None where that was not asked for.
        test: The result on the test rows, once, with the base model and the default configuration.
        base_metrics: Measured without an adapter, ``loss`` among them.
        base_rows: The same row by row on the rows of the evaluations, where the run ends without a comparison.
        default_metrics: The same for the default hyperparameters, trained to their last step.
        packing_chosen: How the trials that were left were divided over several executors, for each process that chose.
        pipeline_windows: Windows of a pipeline by what planned them: ``solver``, or why it was the greedy way.
        search_ended: What ended the search before all trials were proposed, in words.
        search_ended_at: Position of the log at which a callback ended it; None if time did.
        are_results_written: Whether nothing is left to do.
        run_seconds: Run time when it was last recorded; rows of the log may be later.
        seconds: ``tokenise`` and ``load`` come before the run time. Some run time belongs to no activity, so that the
            sum of the others may be less than ``run_seconds``.
    """

    task_name: str | None = None
    run_id: str | None = None
    metric: str = LOSS.name
    metric_maximize: bool = LOSS.maximize
    metric_ties: TieRule | None = None
    state: RunState | None = None
    best_trial_id: int | None = None
    best_files: tuple[str, ...] | None = None
    finals: Comparison | None = None
    test: Comparison | None = None
    base_metrics: Mapping[str, float] | None = None
    base_rows: Mapping[str, Sequence[float]] | None = None
    default_metrics: Mapping[str, float] | None = None
    packing_chosen: tuple[PackingRecord, ...] | None = None
    pipeline_windows: Mapping[str, int] | None = None
    search_ended: str | None = None
    search_ended_at: int | None = None
    are_results_written: bool | None = None
    tracker_failures: Mapping[str, str] | None = None
    run_seconds: float = 0.0
    seconds: Mapping[Activity, float] = field(default_factory=dict)
    places: RunPlaces = field(default_factory=RunPlaces)
    task: TaskFacts = field(default_factory=TaskFacts)
    machine: MachineFacts = field(default_factory=MachineFacts)
    inputs: InputFacts = field(default_factory=InputFacts)
    sizes: SizeFacts = field(default_factory=SizeFacts)
    memory: MemoryFacts = field(default_factory=MemoryFacts)
    passes: PassFacts = field(default_factory=PassFacts)

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Return the facts that the rows of the table hold."""
        # a fact without a row keeps the default of its field: it is not known yet
        known: dict[str, Any] = {entry.name: _read(entry, stored) for entry in fields(cls) if entry.name not in _GROUPS}
        for name, group in _GROUPS.items():
            known[name] = group(**{entry.name: _read(entry, stored) for entry in fields(group)})
        known["seconds"] = {activity: stored[key] for activity in Activity if (key := _seconds_key(activity)) in stored}
        return cls(**{name: value for name, value in known.items() if value is not None})

    @property
    def objective_metric(self) -> ObjectiveMetric:
        ties = self.metric_ties or TieRule.EARLIEST
        return ObjectiveMetric(name=self.metric, maximize=self.metric_maximize, ties=ties)

    def listed(self) -> dict[str, JsonValue]:
        """Return the facts that no other part of a report shows, by key in alphabetical order."""
        # the largest passes are twenty records for programs, which find them in the database
        hidden = {"task_name", "data_counts", "data_problems", "run_seconds", "memory_largest_passes", "finals", "test"}
        hidden |= {"base_rows", "adapted_shapes", "best_files", "whole_modules", "packing_chosen"}
        rows = stored_facts(vars(self))
        return {key: json.loads(text) for key, text in sorted(rows.items()) if key not in hidden and text is not None}


def stored_facts(updates: Mapping[str, object]) -> dict[str, str | None]:
    """Return the rows that ``updates`` lead to: JSON text by key, None for a row to remove."""
    values: dict[str, Any] = {}
    given: dict[str, Any] = dict(updates)
    for name, value in given.items():
        if name in _GROUPS:
            values |= {_stored_key(entry): getattr(value, entry.name) for entry in fields(value)}
        elif name == "seconds":
            values |= {_seconds_key(activity): amount for activity, amount in value.items()}
        else:
            values[name] = value
    # records within facts, such as data problems, become JSON objects by their fields
    return {key: None if value is None else json.dumps(value, default=asdict) for key, value in values.items()}


def _groups() -> dict[str, type[Any]]:
    factories: dict[str, Any] = {entry.name: entry.default_factory for entry in fields(RunFacts)}
    return {name: factory for name, factory in factories.items() if isinstance(factory, type) and is_dataclass(factory)}


_GROUPS = _groups()


def _seconds_key(activity: Activity) -> str:
    return f"{activity.value}_seconds"


def _stored_key(entry: Field[Any]) -> str:
    return str(entry.metadata.get("key", entry.name))


def _read(entry: Field[Any], stored: Mapping[str, Any]) -> Any:
    key = _stored_key(entry)
    value = stored.get(key)
    if key == "state":
        return value if value is None else RunState(value)
    return value if value is None or key not in FROM_JSON else FROM_JSON[key](value)
