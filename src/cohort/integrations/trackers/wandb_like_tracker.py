"""Weights & Biases and Trackio, whose runs look alike: a run object with ``log``, ``config`` and ``finish``."""

from __future__ import annotations

import contextlib
import contextvars
import io
from collections.abc import Callable, Mapping
from typing import Any

from cohort.core.events import Evaluated, StepDone
from cohort.integrations.trackers.tracker import TrackerSettings, evaluation_scalars, leaves_its_slot, step_scalars
from cohort.tuning.decisions import Decision

__all__ = ["HostedTracker", "trackio_tracker", "wandb_tracker"]


class HostedTracker:
    """One run a resident trial; a parked trial's run is finished and opened again when the trial is back.

    Args:
        open_run: Makes or continues the run of a trial: (trial id, hyperparameters) to a run object.
        settings: Names.
    """

    def __init__(self, settings: TrackerSettings, *, open_run: Callable[[int, Mapping[str, Any]], Any]) -> None:
        self._settings = settings
        self._open_run = open_run
        self._parameters: dict[int, Mapping[str, Any]] = {}
        self._runs: dict[int, Any] = {}
        # both libraries keep "the current run" in context variables and end it when another begins; a context of its
        # own for each trial lets as many runs be open as there are trials in the pack
        self._contexts: dict[int, contextvars.Context] = {}

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        self._parameters[trial_id] = dict(parameters)

    def _run(self, trial_id: int) -> Any:
        if trial_id not in self._runs:
            self._contexts[trial_id] = contextvars.Context()
            parameters = {**self._parameters.get(trial_id, {}), "trial": trial_id, "task": self._settings.task_name}
            self._runs[trial_id] = self._contexts[trial_id].run(self._open_run, trial_id, parameters)
        return self._runs[trial_id]

    def _log(self, trial_id: int, numbers: Mapping[str, Any], *, step: int) -> None:
        run = self._run(trial_id)
        self._contexts[trial_id].run(run.log, dict(numbers), step=step)

    def _finish(self, trial_id: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._contexts.pop(trial_id).run(self._runs.pop(trial_id).finish)

    def log_step(self, event: StepDone) -> None:
        self._log(event.trial_id, step_scalars(event), step=event.step)

    def log_evaluation(self, event: Evaluated) -> None:
        self._log(event.trial_id, evaluation_scalars(event), step=event.step)

    def log_decision(self, decision: Decision) -> None:
        if leaves_its_slot(decision):
            outcome = {"decision/kind": decision.kind.value, "decision/reason": str(decision.reason)}
            self._log(decision.trial_id, outcome, step=decision.step)
            self._finish(decision.trial_id)

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        self._log(trial_id, numbers, step=step)
        self._finish(trial_id)

    def close(self) -> None:
        for trial_id in list(self._runs):
            self._finish(trial_id)


def wandb_tracker(settings: TrackerSettings, *, wandb: Any) -> HostedTracker:
    """Return a tracker over the ``wandb`` module: runs grouped by task, continued by id."""

    def open_run(trial_id: int, parameters: Mapping[str, Any]) -> Any:
        return wandb.init(
            project=settings.project,
            group=settings.task_name,
            id=settings.trial_key(trial_id),
            name=settings.trial_name(trial_id),
            config=dict(parameters),
            dir=str(settings.directory),
            resume="allow",
            reinit="create_new",
        )

    return HostedTracker(settings, open_run=open_run)


def trackio_tracker(settings: TrackerSettings, *, trackio: Any) -> HostedTracker:
    """Return a tracker over the ``trackio`` module: runs grouped by task, continued by name."""

    def open_run(trial_id: int, parameters: Mapping[str, Any]) -> Any:
        # Trackio finds a run to continue by its name, so the name holds the run's id
        # and it prints a greeting for every run, which has no place in output that programs read
        with contextlib.redirect_stdout(io.StringIO()):
            return trackio.init(
                project=settings.project,
                group=settings.task_name,
                name=settings.trial_key(trial_id),
                config=dict(parameters),
                resume="allow",
                embed=False,
            )

    return HostedTracker(settings, open_run=open_run)
