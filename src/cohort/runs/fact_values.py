"""Facts that are more than text and numbers, read from their JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cohort.core.memory_records import GradientCheckpointing, ObservedPass, PassKind
from cohort.data.split_input import SplitInput
from cohort.runs.packing_records import PackingRecord
from cohort.runs.records import DataProblem
from cohort.runs.results.comparison import Comparison
from cohort.tuning.evaluation_times import EvaluationTimes
from cohort.tuning.objective_metric import TieRule

__all__ = ["FROM_JSON"]


# JSON has no tuples, enumerations and records: these keys need a conversion
FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "metric_ties": TieRule,
    "evaluation_times": lambda entry: EvaluationTimes(**{**entry, "milestones": tuple(entry["milestones"])}),
    "database_file": tuple,
    "best_files": tuple,
    "tiles": tuple,
    "target_modules": tuple,
    "data_problems": lambda entries: tuple(DataProblem(**entry) for entry in entries),
    "train_input": lambda entry: SplitInput(**entry),
    "validation_input": lambda entry: SplitInput(**entry),
    "all_validation_input": lambda entry: SplitInput(**entry),
    "test_input": lambda entry: SplitInput(**entry),
    "test": Comparison.from_json,
    "finals": Comparison.from_json,
    "packing_chosen": lambda entries: tuple(map(PackingRecord.from_json, entries)),
    "memory_recompute": GradientCheckpointing,
    "micro_batch_tokens": lambda entries: {PassKind(kind): tokens for kind, tokens in entries.items()},
    "memory_largest_passes": lambda entries: tuple(
        ObservedPass(**{**entry, "kind": PassKind(entry["kind"])}) for entry in entries
    ),
}
"""What makes a fact of the value under its key."""
