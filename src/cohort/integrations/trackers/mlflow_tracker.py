"""MLflow: the task is an experiment, each trial a run in it, found again by its tag when the run is resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cohort.core.events import Evaluated, StepDone
from cohort.integrations.trackers.tracker import TrackerSettings, evaluation_scalars, leaves_its_slot, step_scalars
from cohort.tuning.decisions import FAILED, Decision, DecisionKind

__all__ = ["MlflowTracker"]

# metrics go to the server in batches (its limit is 1000): a request for each step would hold up training
_BATCH = 300
_KEY_TAG = "cohort.trial_key"


class MlflowTracker:
    """Logs through ``MlflowClient``, which knows no "active run", so that trials can log side by side.

    Args:
        client: ``mlflow.MlflowClient()``.
        metric: ``mlflow.entities.Metric``.
        param: ``mlflow.entities.Param``.
    """

    def __init__(self, settings: TrackerSettings, *, client: Any, metric: Any, param: Any) -> None:
        self._settings = settings
        self._client, self._metric, self._param = client, metric, param
        self._experiment: str | None = None
        self._parameters: dict[int, Mapping[str, Any]] = {}
        self._runs: dict[int, str] = {}
        self._waiting: dict[int, list[Any]] = {}

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        self._parameters[trial_id] = dict(parameters)

    def _run(self, trial_id: int) -> str:
        if trial_id in self._runs:
            return self._runs[trial_id]
        if self._experiment is None:
            name = self._settings.task_name
            known = self._client.get_experiment_by_name(name)
            self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        key = self._settings.trial_key(trial_id)
        found = self._client.search_runs([self._experiment], filter_string=f"tags.`{_KEY_TAG}` = '{key}'")
        if found:
            self._runs[trial_id] = found[0].info.run_id
        else:
            name, tags = self._settings.trial_name(trial_id), {_KEY_TAG: key}
            run = self._client.create_run(self._experiment, run_name=name, tags=tags)
            self._runs[trial_id] = run.info.run_id
            params = [self._param(name, str(value)) for name, value in self._parameters.get(trial_id, {}).items()]
            self._client.log_batch(run.info.run_id, params=params)
        return self._runs[trial_id]

    def _log(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        # MLflow's own unit is milliseconds since 1970
        now = int(time.time() * 1000)
        waiting = self._waiting.setdefault(trial_id, [])
        waiting.extend(self._metric(name, value, now, step) for name, value in numbers.items())
        if len(waiting) >= _BATCH:
            self._send(trial_id)

    def _send(self, trial_id: int) -> None:
        waiting = self._waiting.pop(trial_id, [])
        if waiting:
            self._client.log_batch(self._run(trial_id), metrics=waiting)

    def log_step(self, event: StepDone) -> None:
        self._log(event.trial_id, step_scalars(event), step=event.step)

    def log_evaluation(self, event: Evaluated) -> None:
        self._log(event.trial_id, evaluation_scalars(event), step=event.step)
        self._send(event.trial_id)

    def log_decision(self, decision: Decision) -> None:
        if not leaves_its_slot(decision):
            return
        self._send(decision.trial_id)
        run_id = self._run(decision.trial_id)
        self._client.set_tag(run_id, "cohort.decision", f"{decision.kind.value}: {decision.reason}")
        if decision.kind is not DecisionKind.PARK:
            # a trial stopped by a rule did its work; only a failed one failed
            status = "FAILED" if decision.reason == FAILED else "FINISHED"
            self._client.set_terminated(run_id, status=status)

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        # the server takes metrics of runs that have ended, too
        self._log(trial_id, numbers, step=step)
        self._send(trial_id)

    def close(self) -> None:
        for trial_id in list(self._waiting):
            self._send(trial_id)
