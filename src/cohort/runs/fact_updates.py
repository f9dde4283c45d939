"""Some facts of a run, to be set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from cohort.runs.facts import (
    Activity,
    InputFacts,
    MachineFacts,
    MemoryFacts,
    PassFacts,
    RunPlaces,
    RunState,
    SizeFacts,
    TaskFacts,
)
from cohort.runs.results.comparison import Comparison
from cohort.tuning.objective_metric import TieRule

__all__ = ["FactUpdates"]


# Python has no type for "some fields of a dataclass"; a test holds these fields and those of RunFacts equal
class FactUpdates(TypedDict, total=False):
    """Facts to set, by field of :class:`RunFacts`; a group replaces the whole group, seconds only those they name."""

    task_name: str
    run_id: str
    metric: str
    metric_maximize: bool
    metric_ties: TieRule
    state: RunState
    has_begun: bool
    best_trial_id: int | None
    best_files: tuple[str, ...] | None
    finals: Comparison | None
    test: Comparison | None
    base_metrics: Mapping[str, float]
    base_rows: Mapping[str, Sequence[float]]
    default_metrics: Mapping[str, float]
    search_ended: str | None
    search_ended_at: int | None
    are_results_written: bool
    tracker_failures: Mapping[str, str]
    run_seconds: float
    seconds: Mapping[Activity, float]
    places: RunPlaces
    task: TaskFacts
    machine: MachineFacts
    inputs: InputFacts
    sizes: SizeFacts
    memory: MemoryFacts
    passes: PassFacts
