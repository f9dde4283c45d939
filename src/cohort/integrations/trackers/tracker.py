"""What every experiment tracker does with a run: one tracker run per trial, under the task's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cohort.core.events import Evaluated, StepDone
from cohort.tuning.decisions import Decision, DecisionKind

__all__ = [
    "Tracker",
    "TrackerSettings",
    "Trackers",
    "evaluation_scalars",
    "leaves_its_slot",
    "step_scalars",
]


@dataclass(frozen=True, kw_only=True)
class TrackerSettings:
    """What a tracker calls things.

    Attributes:
        task_name: Groups the trials: W&B's group, MLflow's experiment, Trackio's group.
        run_id: Tells two runs of one task apart; stays the same when a run is resumed.
        directory: The run directory, for trackers that write files.
        project: W&B's and Trackio's project.
    """

    task_name: str
    run_id: str
    directory: Path
    project: str = "cohort"

    def trial_name(self, trial_id: int) -> str:
        return f"trial-{trial_id:04d}"

    def trial_key(self, trial_id: int) -> str:
        """Return an identifier of a trial's tracker run that no other run uses."""
        return f"{self.run_id}-{trial_id:04d}"


class Tracker(Protocol):
    """Records trials elsewhere. Calls come in the order of each trial's steps; a resumed run may repeat some."""

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        """Make a trial and its hyperparameters known, before anything is logged about it."""
        ...

    def log_step(self, event: StepDone) -> None: ...

    def log_evaluation(self, event: Evaluated) -> None: ...

    def log_decision(self, decision: Decision) -> None: ...

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        """Log what a trial that has ended after ``step`` has on many rows; nothing else of it follows."""
        ...

    def close(self) -> None:
        """Send what is still waiting and end."""
        ...


def step_scalars(event: StepDone) -> dict[str, float]:
    """Return a step's numbers under the names that transformers' Trainer logs them by."""
    return {"train/loss": event.loss, "train/grad_norm": event.grad_norm, "train/learning_rate": event.learning_rate}


def evaluation_scalars(event: Evaluated) -> dict[str, float]:
    """Return an evaluation's numbers under the names that transformers' Trainer logs them by."""
    return {"eval/loss": event.validation_loss, **{f"eval/{name}": value for name, value in event.metrics.items()}}


def leaves_its_slot(decision: Decision) -> bool:
    """Return whether the trial logs nothing more for now, so that its tracker run can be closed."""
    return decision.kind in (DecisionKind.PARK, DecisionKind.STOP, DecisionKind.FINISH)


class Trackers:
    """Several trackers as one. A tracker that fails is dropped and noted: no server may end a night's training."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._failures: dict[str, str] = {}

    @property
    def failures(self) -> Mapping[str, str]:
        """What went wrong, by the name of the tracker that was dropped for it; for the run's facts and its end."""
        return dict(self._failures)

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                self._failures[name] = f"{type(error).__name__}: {error}"
                del self._trackers[name]

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.start_trial(trial_id, parameters=parameters))

    def log_step(self, event: StepDone) -> None:
        self._each(lambda tracker: tracker.log_step(event))

    def log_evaluation(self, event: Evaluated) -> None:
        self._each(lambda tracker: tracker.log_evaluation(event))

    def log_decision(self, decision: Decision) -> None:
        self._each(lambda tracker: tracker.log_decision(decision))

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        self._each(lambda tracker: tracker.log_comparison(trial_id, numbers, step=step))

    def close(self) -> None:
        """End all, the later ones even when an earlier one fails."""
        self._each(lambda tracker: tracker.close())
