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

from cohort.core.memory_records import GradientCheckpointing, ObservedPass, PassKind
from cohort.data.split_input import SplitInput
from cohort.runs.fact_values import FROM_JSON
from cohort.runs.packing_records import PackingRecord
from cohort.runs.records import DataProblem, JsonValue
from cohort.runs.results.comparison import Comparison
from cohort.tuning.evaluation_times import EvaluationTimes
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric, TieRule

__all__ = [
    "Activity",
    "InputFacts",
    "MachineFacts",
    "MemoryFacts",
    "PassFacts",
    "RunFacts",
    "RunPlaces",
    "RunState",
    "SizeFacts",
    "TaskFacts",
    "stored_facts",
]


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


# a group's fields have shorter names where the group says the rest
def _key(key: str) -> Any:
    """Return a field without a value that is stored under ``key``."""
    return field(default=None, metadata={"key": key})


@dataclass(frozen=True, kw_only=True)
class RunPlaces:
    """Where the run and its base model were when a process last began to write.

    Attributes:
        run_directory: Absolute; inputs that moved together with the run are found relative to it.
        base_model: A folder or a hub id.
        database_file: Path, device and inode of the database; a copy of it has others.
    """

    run_directory: str | None = None
    base_model: str | None = None
    database_file: tuple[str, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What the task asks for.

    Attributes:
        document: The resolved task as JSON, every default written out.
        task_hash: SHA-256 of ``document`` (hex).
        training: Settings that all trials share, by name.
        default_trial_id: The trial with the default hyperparameters, where one has them.
        warmup_fraction, kept_share: When the selection is and how many it keeps, for the time that is left.
    """

    document: Mapping[str, Any] | None = _key("task")
    task_hash: str | None = None
    objective: str | None = None
    training: Mapping[str, JsonValue] | None = None
    default_trial_id: int | None = None
    warmup_fraction: float | None = None
    kept_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The machine, packages and kernels the run began with. Others change the last bits of its numbers.

    Attributes:
        device: Its type, with its name in parentheses.
        backend, attention: What computes adapters' products and attention.
        model: What computes the base model, where it is no native family.
        tile_table, tiles, term_inside: Launch choices of GPU kernels.
        numerics, numerics_reason: On a GPU what trials train with, and why where the task left it to the machine.
    """

    versions: Mapping[str, str] | None = None
    device: str | None = None
    precision: str | None = None
    threads: int | None = None
    backend: str | None = None
    attention: str | None = None
    model: str | None = None
    tile_table: str | None = None
    tiles: tuple[str, ...] | None = None
    term_inside: str | None = None
    numerics: str | None = None
    numerics_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """The run's inputs: rows, weights and tokenizer, known by their content.

    Attributes:
        train_input, validation_input, tokenizer_hash: Tell which input changed.
        all_validation_input: The same for every validation row, where the best trials are compared on all of them.
        test_input: The same for the test rows.
        adapted_shapes: Inputs, outputs and count of the adapted linears of each name, for trials that may be BD-LoRA
            or VeRA.
        whole_modules: Of the modules that each trial trains a copy of, ``entries`` and ``rank_rows``; None without.
        evaluation_rows: Validation rows that every evaluation uses.
        evaluation_times: When trials are evaluated, where it is less often than the task says.
        evaluation_cost_fraction: Cost of evaluating over that of training, as planned.
        metric_functions: SHA-256 of the code of the user's functions: by the name of a metric, as ``loss:NAME`` or
            ``reward:NAME``.
        reference_adapter_hash: SHA-256 over the files of the adapter that trials are held to; None for the base model.
        start_adapter_hash: The same of the adapter that trials begin with; None for drawn weights.
    """

    data_hash: str | None = None
    data_format: str | None = None
    is_chat: bool | None = None
    data_counts: Mapping[str, int] | None = None
    data_problems: tuple[DataProblem, ...] | None = None
    train_fingerprint: str | None = None
    validation_fingerprint: str | None = None
    train_input: SplitInput | None = None
    validation_input: SplitInput | None = None
    all_validation_input: SplitInput | None = None
    test_input: SplitInput | None = None
    tokenizer_hash: str | None = None
    model_hash: str | None = None
    target_modules: tuple[str, ...] | None = None
    adapted_shapes: Mapping[str, tuple[int, int, int]] | None = None
    whole_modules: Mapping[str, int] | None = None
    num_train_rows: int | None = None
    evaluation_rows: int | None = None
    evaluation_times: EvaluationTimes | None = None
    evaluation_cost_fraction: float | None = None
    metric_functions: Mapping[str, str] | None = None
    reference_adapter_hash: str | None = None
    start_adapter_hash: str | None = None


@dataclass(frozen=True, kw_only=True)
class SizeFacts:
    """Sizes of the executor. A resumed run keeps them: which trials are resident when follows from them.

    Attributes:
        num_ranks: Processes that trained when the run began, one on each GPU; a resumed run may have another number.
        rank_group: The strategy with which they held one model together, ``tensor`` or ``pipeline``; None for none.
    """

    num_slots: int | None = None
    rank_rows: int | None = None
    token_budget: int | None = None
    num_ranks: int | None = None
    rank_group: str | None = None
    gradient_checkpointing: GradientCheckpointing | None = field(default=None, metadata={"key": "memory_recompute"})


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """The memory that the sizes were chosen by.

    Attributes:
        of_a_pass: Whether the memory of passes was ``measured`` or ``estimated``.
        profile_passes: Passes that were measured for it; 0 where an earlier run's measurements served.
        host_streamed_layers: Layers of the base model that stayed in host memory; None where none did.
        divided_layers: Layers of the base model that were divided over several GPUs; None where none was.
    """

    available_bytes: int | None = _key("memory_available_bytes")
    limit_bytes: int | None = _key("memory_limit_bytes")
    margin_share: float | None = _key("memory_margin_share")
    reserve_bytes: int | None = _key("memory_reserve_bytes")
    of_a_pass: str | None = _key("memory_of_a_pass")
    profile_passes: int | None = _key("memory_profile_passes")
    profile_seconds: float | None = _key("memory_profile_seconds")
    profile_error_percent: float | None = _key("memory_profile_error_percent")
    profile_largest_tokens: int | None = _key("memory_profile_largest_tokens")
    host_streamed_layers: int | None = None
    divided_layers: int | None = None


@dataclass(frozen=True, kw_only=True)
class PassFacts:
    """The memory that passes took so far, and the sizes that were changed because of it.

    Attributes:
        token_budgets: Most tokens of a micro-batch, by kind of pass; a shortage lowers them.
        kept_tokens_after_shortage: Longer training passes are recomputed since memory ran out; None where it did not.
        recomputed_above_tokens: Longer training passes are recomputed, for whatever reason.
        num_observed: Passes whose peak was observed; the fields below are None where there was none.
        error_percent: Mean error of their predictions, in percent of what was observed.
        predicted_bytes, observed_bytes: The largest pass.
        largest: The passes that took most, largest first.
    """

    token_budgets: Mapping[PassKind, int] | None = _key("micro_batch_tokens")
    kept_tokens_after_shortage: int | None = None
    recomputed_above_tokens: int | None = None
    num_shortages: int | None = _key("memory_shortages")
    num_recomputed: int | None = _key("recomputed_passes")
    num_observed: int | None = _key("memory_passes_observed")
    error_percent: float | None = _key("memory_prediction_error_percent")
    predicted_bytes: int | None = _key("memory_pass_predicted_bytes")
    observed_bytes: int | None = _key("memory_pass_observed_bytes")
    largest: tuple[ObservedPass, ...] | None = _key("memory_largest_passes")


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run: all that its record holds but the log. A fact that is not known, or not known yet, is None.

    Attributes:
        task_name: The run directory's name when the run began.
        metric, metric_maximize: What the best checkpoint is chosen by.
        metric_ties: What is better at equal values of it.
        has_begun: Whether the first checkpoint is there; a run without it begins again from its task.
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
    has_begun: bool | None = None
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
    places: RunPlaces = RunPlaces()
    task: TaskFacts = TaskFacts()
    machine: MachineFacts = MachineFacts()
    inputs: InputFacts = InputFacts()
    sizes: SizeFacts = SizeFacts()
    memory: MemoryFacts = MemoryFacts()
    passes: PassFacts = PassFacts()

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


_GROUPS: dict[str, type[Any]] = {
    entry.name: type(entry.default) for entry in fields(RunFacts) if is_dataclass(entry.default)
}


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
