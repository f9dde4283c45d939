"""Facts of a run that belong together: where it is, its task, machine, inputs, sizes and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.core.memory_records import GradientCheckpointing, ObservedPass, PassKind
from cohort.data.split_input import SplitInput
from cohort.runs.records import DataProblem, JsonValue
from cohort.tuning.evaluation_times import EvaluationTimes

__all__ = ["InputFacts", "MachineFacts", "MemoryFacts", "PassFacts", "RunPlaces", "SizeFacts", "TaskFacts"]


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
