"""What a watcher receives of a running task: immutable snapshots and notes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from cohort.runs.records import TrialRecord
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus

__all__ = ["ProgressWatcher", "RankProgress", "RunProgress", "SilentWatcher"]


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """One of several GPUs, or processes of a CPU, at one moment.

    Attributes:
        num_trials: Trials that are on it; None where all ranks hold every trial together.
        busy_share: Share of the last seconds in which it trained or evaluated; None before the first.
    """

    rank: int
    num_trials: int | None
    busy_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A run at one moment.

    Attributes:
        phase: The current activity (``loading the model``, ``training``, ``measuring the base``).
        trials: Every trial proposed so far, by id.
        metric: The task's.
        elapsed_seconds: Run time; stands still while the run is stopped.
        tokens_per_second: Trained and evaluated, lately; None before the first token.
        seconds_left: Prediction that expects the selections to come; None while there is none.
        seconds_left_at_worst: The same if no further trial exits early; None before there is a pace.
        tokens_done: Trained so far.
        ranks: Each GPU where there are several; empty where there is one.
        recomputed_passes: Training passes of this process that used gradient checkpointing (about 50 % slower).
    """

    phase: str
    trials: tuple[TrialRecord, ...] = ()
    metric: ObjectiveMetric = LOSS
    elapsed_seconds: float = 0.0
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    seconds_left_at_worst: float | None = None
    tokens_done: int = 0
    recomputed_passes: int = 0
    ranks: tuple[RankProgress, ...] = ()
    _counts: Counter[TrialStatus] = field(init=False, repr=False, compare=False, default_factory=Counter)

    def __post_init__(self) -> None:
        # counted once: a screen asks for each status at every redraw
        self._counts.update(trial.status for trial in self.trials)

    def count(self, status: TrialStatus) -> int:
        """Return how many trials have this status."""
        return self._counts[status]

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best checkpoint so far."""
        measured = ((order, trial) for trial in self.trials if (order := trial.order(self.metric)) is not None)
        return min(measured, key=lambda found: found[0], default=(None, None))[1]

    @property
    def metric_label(self) -> str:
        return self.metric.label

    @property
    def stopped_by_reason(self) -> dict[str, int]:
        """How many trials ended early, by reason, most first."""
        ended = (TrialStatus.STOPPED, TrialStatus.FAILED)
        counts = Counter(trial.reason or "failed" for trial in self.trials if trial.status in ended)
        return dict(counts.most_common())


class ProgressWatcher(Protocol):
    """Shows progress. Calls come from the run's own thread and must return quickly."""

    def update(self, progress: RunProgress) -> None:
        """Take a snapshot; the run sends one whenever something changed, several a second at most."""
        ...

    def note(self, text: str) -> None:
        """Take one line worth keeping: the chosen backend, a trial that stopped and why, a new best."""
        ...


class SilentWatcher:
    """Shows nothing."""

    def update(self, progress: RunProgress) -> None: ...

    def note(self, text: str) -> None: ...
