"""From a proposed configuration to a trial: its spec and its plan in steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.data.tokenised import TokenisedRows
from cohort.prepare.adapters.adapter_specs import adapter_spec
from cohort.prepare.objectives import task_objective
from cohort.runs.records import TrialRecord
from cohort.tasks.task_file import TaskFile
from cohort.tasks.trial_values import default_values, shown_values
from cohort.training.objectives.objective import Objective
from cohort.training.rollouts.group_objective import GroupObjective
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from cohort.tuning.candidate import Candidate
from cohort.tuning.evaluation_times import (
    EvaluationTimes,
    plan_candidate,
)
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.parameters import Value

__all__ = ["PlannedTrial", "objective_metric", "plan_added_trial", "plan_trial", "tokens_per_sample"]

Configuration = Mapping[str, int | float | str | bool]


def objective_metric(task: TaskFile) -> ObjectiveMetric:
    return ObjectiveMetric(name=task.evaluation.metric_name, maximize=task.evaluation.maximize)


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial from its proposal to the end of the run: :func:`plan_trial` makes it of the proposed hyperparameters."""

    configuration: Configuration
    spec: TrialSpec
    candidate: Candidate
    planned_tokens: int

    def record(self) -> TrialRecord:
        """Return it as the database knows it before its first step."""
        return TrialRecord(
            trial_id=self.spec.trial_id,
            parameters=dict(self.configuration),
            planned_steps=self.spec.num_steps,
            seed=self.spec.seed,
            # how long answers become is not known before: the record then counts by the steps that were taken
            planned_tokens=None if self.spec.objective.samples_answers else self.planned_tokens,
        )


def plan_trial(
    task: TaskFile,
    trial_id: int,
    configuration: Configuration,
    *,
    rows: TokenisedRows,
    times: EvaluationTimes | None = None,
    saved: SavedModules | None = None,
    start: AdapterStart | None = None,
) -> PlannedTrial:
    """Return the trial of a proposed configuration, which sets every hyperparameter, on training ``rows``.

    ``times`` are when it is evaluated, as the task says by default; ``saved`` and ``start`` are those of
    :func:`~cohort.prepare.adapters.adapter_specs.adapter_spec`.
    """
    # a sample is a group of rows where the objective compares rows
    num_rows = len(rows) // task_objective(task).group_size
    spec = _spec(task, trial_id, configuration, num_rows=num_rows, saved=saved, start=start)
    candidate = plan_candidate(
        trial_id,
        planned_steps=spec.num_steps,
        warmup_fraction=task.early_exit_settings().warmup_fraction,
        settings=task.evaluation_settings(),
        times=times,
    )
    return PlannedTrial(
        configuration=shown_values(task, configuration),
        spec=spec,
        candidate=candidate,
        planned_tokens=round(_samples(spec, num_rows) * tokens_per_sample(spec.objective, rows)),
    )


def tokens_per_sample(objective: Objective, rows: TokenisedRows) -> float:
    """Return the tokens that a sample of a step has on average; the most, where answers are drawn to it."""
    mean = float(rows.offsets[-1]) * objective.group_size / len(rows)
    if isinstance(objective, GroupObjective):
        return objective.num_generations * (mean + objective.max_completion_length)
    return mean


def plan_added_trial(
    task: TaskFile,
    trial_id: int,
    parameters: Mapping[str, Value],
    *,
    rows: TokenisedRows,
    times: EvaluationTimes | None = None,
    saved: SavedModules | None = None,
    start: AdapterStart | None = None,
) -> PlannedTrial:
    """Return the trial that a person adds, from the hyperparameters that its record shows."""
    configuration = {**default_values(task), **parameters}
    # all that was given is shown, searched or not
    planned = plan_trial(task, trial_id, configuration, rows=rows, times=times, saved=saved, start=start)
    return replace(planned, configuration=dict(parameters))


def _samples(spec: TrialSpec, num_rows: int) -> int:
    # the last batch of each epoch may be smaller
    per_epoch = -(-num_rows // spec.batch_size)
    epochs, rest = divmod(spec.num_steps, per_epoch)
    return epochs * num_rows + min(rest * spec.batch_size, num_rows)


def _spec(
    task: TaskFile,
    trial_id: int,
    values: Configuration,
    *,
    num_rows: int,
    saved: SavedModules | None,
    start: AdapterStart | None,
) -> TrialSpec:
    batch_size = int(values["batch_size"])
    steps_per_epoch = -(-num_rows // batch_size)
    num_steps = task.training.max_steps or max(1, math.ceil(float(values["num_train_epochs"]) * steps_per_epoch))
    schedule = Schedule(str(values["lr_scheduler_type"]))
    return TrialSpec(
        trial_id=trial_id,
        seed=int(values["seed"]),
        adapter=adapter_spec(task, values, saved=saved, start=start),
        learning_rate=float(values["learning_rate"]),
        batch_size=batch_size,
        num_steps=num_steps,
        schedule=schedule,
        # those alone that its schedule reads: others belong to other trials
        schedule_options=task.training.schedule_options().read_by(schedule),
        warmup_ratio=float(values["warmup_ratio"]),
        weight_decay=float(values["weight_decay"]),
        max_grad_norm=float(values["max_grad_norm"]),
        loraplus_lr_ratio=float(values["loraplus_lr_ratio"]),
        optim=str(values["optim"]),
        beta1=float(values["adam_beta1"]),
        beta2=float(values["adam_beta2"]),
        epsilon=float(values["adam_epsilon"]),
        objective=task_objective(task, values),
    )
