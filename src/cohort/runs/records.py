"""What the run store holds, as immutable records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.tuning.decisions import Decision
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus

__all__ = [
    "CheckpointRecord",
    "DataProblem",
    "EvaluationRecord",
    "JsonValue",
    "LoggedDecision",
    "LoggedEvent",
    "RankWorkRecord",
    "ResidencyRecord",
    "StepRecord",
    "TrialRecord",
]

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial as the run's database knows it: its plan makes the first record, and a reader every later one.

    Attributes:
        parameters: Every hyperparameter by its task-file name (``learning_rate``, ``r``, ``batch_size``, ...).
        planned_steps: Optimizer steps of its full training.
        seed: The trial's own seed.
        planned_tokens: Tokens of its full training, prompts included; None where the plan gives none.
        reason: Why it ended, in the words of the decision; empty while it may go on.
        message: The error of a failed trial; who stopped it and when, if a person did; else empty.
        tokens: Tokens trained so far.
        evaluation_tokens: Tokens evaluated so far.
        last_loss: Loss of the last step, in nats per trained token; None before the first.
        best_step: Step of its best evaluation by the task's metric; None before the first that is finite.
        best_value: The task's metric there.
        best_loss: The validation loss there.
        best_metrics: All further metrics there; a snapshot for a watcher has none.
        is_protected: Whether a person decided that no exit rule may stop it.
    """

    trial_id: int
    parameters: Mapping[str, JsonValue]
    planned_steps: int
    seed: int
    planned_tokens: int | None = None
    status: TrialStatus = TrialStatus.WAITING
    reason: str = ""
    message: str = ""
    steps_done: int = 0
    tokens: int = 0
    evaluation_tokens: int = 0
    last_loss: float | None = None
    best_step: int | None = None
    best_value: float | None = None
    best_loss: float | None = None
    best_metrics: Mapping[str, float] = field(default_factory=dict)
    is_protected: bool = False

    @property
    def state(self) -> str:
        """The status, or why a rule or a person stopped the trial, and that a person keeps it."""
        # the reason alone: with "stopped" before it, a row would not fit 80 columns
        if self.status is TrialStatus.STOPPED and self.reason:
            return self.reason
        is_kept = self.is_protected and not self.status.is_final
        return f"{self.status.value}, kept" if is_kept else self.status.value

    def order(self, metric: ObjectiveMetric) -> tuple[float, ...] | None:
        """Return the sort key of its best checkpoint (:meth:`ObjectiveMetric.order`); None before the first."""
        if self.best_value is None or self.best_loss is None or self.best_step is None:
            return None
        return metric.order(
            self.best_value, validation_loss=self.best_loss, step=self.best_step, trial_id=self.trial_id
        )


@dataclass(frozen=True, kw_only=True)
class StepRecord(StepDone):
    """One optimizer step with its place in the log; ``seconds`` is run time, which stands still between processes."""

    position: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Evaluated):
    """One evaluation with its place in the log, and without its ``row_values``."""

    position: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """An event with its place in the log."""

    position: int
    seconds: float
    event: TrialEvent


@dataclass(frozen=True, kw_only=True)
class LoggedDecision:
    """A decision with its place in the log."""

    position: int
    seconds: float
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class ResidencyRecord:
    """A stay of a trial in a slot; the stop is None while it lasts."""

    trial_id: int
    slot: int
    start_position: int
    start_seconds: float
    stop_position: int | None
    stop_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class RankWorkRecord:
    """What one of several GPUs did in a stretch of the run's time; the rest of the stretch it waited."""

    rank: int
    start_seconds: float
    end_seconds: float
    train_seconds: float
    evaluate_seconds: float
    num_tokens: int

    @property
    def busy_seconds(self) -> float:
        return self.train_seconds + self.evaluate_seconds


@dataclass(frozen=True, kw_only=True)
class DataProblem:
    """A note about the data, as the report lists it."""

    where: str
    found: str
    allowed: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A state to resume from: everything up to and including ``position`` is in it.

    Attributes:
        file_name: Relative to the run directory.
        checksum: SHA-256 of the file, hex.
    """

    position: int
    seconds: float
    file_name: str
    checksum: str
