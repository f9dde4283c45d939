"""From a proposed configuration to a trial: its spec and its plan in steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cohort.data.choices import num_choices
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import CHOICE_ACCURACY
from cohort.prepare.adapter_specs import adapter_spec
from cohort.prepare.objectives import task_objective
from cohort.runs.facts import InputFacts
from cohort.runs.records import NewTrial
from cohort.tasks.task_file import TaskFile
from cohort.tasks.trial_values import default_values, shown_values
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from cohort.tuning.candidate import Candidate
from cohort.tuning.evaluation_times import (
    EvaluationPlan,
    EvaluationTimes,
    Workload,
    plan_candidate,
    plan_evaluation_rows,
)
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.parameters import Value
from cohort.tuning.samplers import Proposal

__all__ = [
    "PlannedTrial",
    "evaluation_note",
    "metric_tokens",
    "objective_metric",
    "plan_added_trial",
    "plan_evaluation",
    "plan_trial",
    "recorded_evaluation",
    "row_tokens",
    "tokens_per_row",
]

# the mean over fewer rows is noisy to select by: trials are evaluated less often before there are fewer
_ENOUGH_ROWS = 16
# a small task keeps this many even above its share of the compute: with fewer, chance would select
_FEWEST_ROWS = 8
# rows whose choices are counted for a prediction of cost
_SAMPLED_ROWS = 64

Configuration = Mapping[str, int | float | str | bool]


def objective_metric(task: TaskFile) -> ObjectiveMetric:
    return ObjectiveMetric(name=task.evaluation.metric_name, maximize=task.evaluation.maximize)


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial before it trains: its configuration, spec and steps."""

    configuration: Configuration
    spec: TrialSpec
    candidate: Candidate
    planned_tokens: int

    def record(self) -> NewTrial:
        return NewTrial(
            trial_id=self.spec.trial_id,
            parameters=dict(self.configuration),
            planned_steps=self.spec.num_steps,
            seed=self.spec.seed,
            planned_tokens=self.planned_tokens,
        )


def plan_trial(
    task: TaskFile, proposal: Proposal, *, rows: TokenisedRows, times: EvaluationTimes | None = None
) -> PlannedTrial:
    """Return the trial of a proposed configuration, which sets every hyperparameter, on training ``rows``.

    ``times`` are when it is evaluated, as the task says by default.
    """
    # a sample is a group of rows where the objective compares rows
    configuration, num_rows = proposal.configuration, len(rows) // task_objective(task).group_size
    spec = _spec(task, proposal.trial_id, configuration, num_rows=num_rows)
    candidate = plan_candidate(
        proposal.trial_id,
        planned_steps=spec.num_steps,
        warmup_fraction=task.early_exit_settings().warmup_fraction,
        settings=task.evaluation_settings(),
        times=times,
    )
    return PlannedTrial(
        configuration=shown_values(task, configuration),
        spec=spec,
        candidate=candidate,
        planned_tokens=round(_samples(spec, num_rows) * int(rows.offsets[-1]) / num_rows),
    )


def plan_added_trial(
    task: TaskFile,
    trial_id: int,
    parameters: Mapping[str, Value],
    *,
    rows: TokenisedRows,
    times: EvaluationTimes | None = None,
) -> PlannedTrial:
    """Return the trial that a person adds, from the hyperparameters that its record shows."""
    proposal = Proposal(trial_id=trial_id, configuration={**default_values(task), **parameters})
    # all that was given is shown, searched or not
    return replace(plan_trial(task, proposal, rows=rows, times=times), configuration=dict(parameters))


def plan_evaluation(task: TaskFile, trials: Sequence[PlannedTrial], *, validation: TokenisedRows) -> EvaluationPlan:
    """Return how many rows every evaluation uses, and when, within the task's share of the training compute.

    Args:
        trials: The first trials, evaluated as often as the task says.
    """
    early_exit = task.early_exit_settings()
    group_size = task_objective(task).group_size
    num_available = len(validation) // group_size
    return plan_evaluation_rows(
        [
            Workload(candidate=trial.candidate, tokens_per_step=trial.planned_tokens / trial.spec.num_steps)
            for trial in trials
        ],
        num_available=num_available,
        mean_tokens_per_row=tokens_per_row(task, validation),
        settings=task.evaluation_settings(),
        kept_share=early_exit.kept_share,
        kept_at=early_exit.kept_at,
        milestones=early_exit.milestones,
        enough_rows=min(_ENOUGH_ROWS, num_available),
        min_rows=min(_FEWEST_ROWS, num_available),
    )


def recorded_evaluation(inputs: InputFacts) -> EvaluationPlan | None:
    """Return the plan that a run recorded when it began; None where an old record has none."""
    if inputs.evaluation_rows is None:
        return None
    # a run of a version that left out no times has none recorded
    return EvaluationPlan(
        num_rows=inputs.evaluation_rows,
        cost_fraction=inputs.evaluation_cost_fraction or 0.0,
        thinned=False,
        times=inputs.evaluation_times,
    )


def metric_tokens(task: TaskFile, rows: TokenisedRows) -> float:
    """Return the mean tokens that metrics of a row take on top of those that the loss needs."""
    # one generation serves all metrics of text
    generated = float(task.evaluation.max_new_tokens) if task.evaluation.generates else 0.0
    if CHOICE_ACCURACY not in task.evaluation.measured:
        return generated
    sampled = range(min(len(rows), _SAMPLED_ROWS))
    settings = task.dataset_settings()
    counts = [num_choices(rows, row_id, settings=settings) for row_id in sampled]
    # a choice is about as long as the answer
    return generated + float(rows.lengths.mean()) * sum(counts) / len(sampled)


def tokens_per_row(task: TaskFile, validation: TokenisedRows) -> float:
    """Return how many tokens evaluating a row, or a group of rows, reads and generates."""
    return task_objective(task).group_size * float(validation.lengths.mean()) + metric_tokens(task, validation)


def row_tokens(task: TaskFile, rows: TokenisedRows) -> NDArray[np.int64]:
    """Return the most tokens that measuring each row, or group of rows, reads and generates, int64 [groups]."""
    size = task_objective(task).group_size
    own = rows.lengths.reshape(-1, size)
    tokens: NDArray[np.int64] = own.sum(axis=1)
    if task.evaluation.generates:
        # the prompt is read once more, and is shorter than its row
        tokens = tokens + own[:, 0] + task.evaluation.max_new_tokens
    if CHOICE_ACCURACY in task.evaluation.measured:
        settings = task.dataset_settings()
        counts = [num_choices(rows, size * group, settings=settings) for group in range(len(own))]
        tokens = tokens + own[:, 0] * np.array(counts, dtype=np.int64)
    return tokens


def evaluation_note(plan: EvaluationPlan, *, task: TaskFile, num_available: int) -> str | None:
    """Return a note about a plan that leaves out rows or times, or costs more than the task allows; else None."""
    most = task.evaluation.max_cost_fraction
    if not plan.thinned and plan.times is None and plan.cost_fraction <= most:
        return None
    often = "" if plan.times is None else f" at {plan.num_evaluations} instead of {plan.num_wanted} times in a trial"
    above = f", above max_cost_fraction {most:g}" if plan.cost_fraction > most else ""
    return (
        f"evaluations use {plan.num_rows} of {num_available} validation rows{often}, "
        f"{100 * plan.cost_fraction:.3g} % of the training compute{above}"
    )


def _samples(spec: TrialSpec, num_rows: int) -> int:
    # the last batch of each epoch may be smaller
    per_epoch = -(-num_rows // spec.batch_size)
    epochs, rest = divmod(spec.num_steps, per_epoch)
    return epochs * num_rows + min(rest * spec.batch_size, num_rows)


def _spec(task: TaskFile, trial_id: int, values: Configuration, *, num_rows: int) -> TrialSpec:
    batch_size = int(values["batch_size"])
    steps_per_epoch = -(-num_rows // batch_size)
    num_steps = task.training.max_steps or max(1, math.ceil(float(values["num_train_epochs"]) * steps_per_epoch))
    return TrialSpec(
        trial_id=trial_id,
        seed=int(values["seed"]),
        adapter=adapter_spec(task, values),
        learning_rate=float(values["learning_rate"]),
        batch_size=batch_size,
        num_steps=num_steps,
        schedule=Schedule(str(values["lr_scheduler_type"])),
        warmup_ratio=float(values["warmup_ratio"]),
        weight_decay=float(values["weight_decay"]),
        max_grad_norm=float(values["max_grad_norm"]),
        loraplus_lr_ratio=float(values["loraplus_lr_ratio"]),
        optim=str(values["optim"]),
        objective=task_objective(task, values),
    )
