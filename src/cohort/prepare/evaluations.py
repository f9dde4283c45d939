"""How the trials of a task are evaluated: on which validation rows, at which steps, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.core.seeds import derive_seed
from cohort.data.choice_rows import num_choices
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import CHOICE_ACCURACY
from cohort.prepare.objectives import task_objective
from cohort.prepare.trials import PlannedTrial
from cohort.runs.fact_groups import InputFacts
from cohort.tasks.task_file import TaskFile
from cohort.training.rollouts.group_objective import GroupObjective
from cohort.tuning.early_exit.first_comparison import FirstComparison
from cohort.tuning.evaluation_times import EvaluationPlan, Workload, plan_evaluation_rows

__all__ = [
    "choose_rows",
    "evaluation_note",
    "metric_tokens",
    "plan_evaluation",
    "ranked_rows",
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


def plan_evaluation(task: TaskFile, trials: Sequence[PlannedTrial], *, validation: TokenisedRows) -> EvaluationPlan:
    """Return how many rows every evaluation uses, and when, within the task's share of the training compute.

    Args:
        trials: The first trials, evaluated as often as the task says.
    """
    early_exit = task.early_exit_settings()
    group_size = task_objective(task).group_size
    num_available = len(validation) // group_size
    compared = FirstComparison.of(early_exit, fewest_steps=min(trial.spec.num_steps for trial in trials))
    return plan_evaluation_rows(
        [
            Workload(candidate=trial.candidate, tokens_per_step=trial.planned_tokens / trial.spec.num_steps)
            for trial in trials
        ],
        num_available=num_available,
        mean_tokens_per_row=tokens_per_row(task, validation),
        settings=task.evaluation_settings(),
        # as of many trials: what evaluations cost next to training changes little with how many go on
        kept_share=compared.kept_share,
        kept_at=compared.kept_at,
        milestones=compared.milestones,
        evaluations_in_warmup=compared.evaluations_in_warmup,
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


def evaluation_note(plan: EvaluationPlan, *, task: TaskFile, num_available: int) -> str | None:
    """Return a note about a plan that leaves out rows or times, or costs more than the task allows; else None."""
    most = task.evaluation.max_cost_fraction
    if not plan.thinned and plan.times is None and plan.cost_fraction <= most:
        return None
    often = "" if plan.times is None else f", {plan.num_evaluations} times in a trial instead of {plan.num_wanted}"
    above = f", above max_cost_fraction {most:g}: fewer would say too little" if plan.cost_fraction > most else ""
    return (
        f"evaluations use {plan.num_rows} of {num_available} validation rows{often}; they cost "
        f"{100 * plan.cost_fraction:.3g} % of the training compute{above}"
    )


def choose_rows(task: TaskFile, rows: TokenisedRows, *, wanted: int) -> tuple[int, ...]:
    """Choose evaluation rows, or groups of rows, by seed: the same for every trial of the task."""
    return tuple(sorted(ranked_rows(task, rows)[:wanted]))


def ranked_rows(task: TaskFile, rows: TokenisedRows) -> list[int]:
    """Return all rows, or groups of rows, in the order in which :func:`choose_rows` takes them."""
    available = len(rows) // task_objective(task).group_size
    # each row's rank is its own hash, so that one more validation row changes at most one chosen row
    return sorted(range(available), key=lambda row: derive_seed(task.training.seed, "evaluation rows", row))


def row_tokens(task: TaskFile, rows: TokenisedRows) -> NDArray[np.int64]:
    """Return the most tokens that measuring each row, or group of rows, reads and generates, int64 [groups]."""
    size = task_objective(task).group_size
    own = rows.lengths.reshape(-1, size)
    tokens: NDArray[np.int64] = own.sum(axis=1)
    objective = task_objective(task)
    if isinstance(objective, GroupObjective):
        drawn = max(1, task.evaluation.num_generations)
        tokens = drawn * (tokens + objective.max_completion_length)
    if task.evaluation.generates:
        # the prompt is read once more, and is shorter than its row
        tokens = tokens + own[:, 0] + task.evaluation.max_new_tokens
    if CHOICE_ACCURACY in task.evaluation.measured:
        settings = task.dataset_settings()
        counts = [num_choices(rows, size * group, settings=settings) for group in range(len(own))]
        tokens = tokens + own[:, 0] * np.array(counts, dtype=np.int64)
    return tokens


def tokens_per_row(task: TaskFile, validation: TokenisedRows) -> float:
    """Return how many tokens evaluating a row, or a group of rows, reads and generates."""
    return task_objective(task).group_size * float(validation.lengths.mean()) + metric_tokens(task, validation)


def metric_tokens(task: TaskFile, rows: TokenisedRows) -> float:
    """Return the mean tokens that metrics of a row take on top of those that the loss needs."""
    objective = task_objective(task)
    # one generation serves all metrics of text
    generated = float(task.evaluation.max_new_tokens) if task.evaluation.generates else 0.0
    if isinstance(objective, GroupObjective):
        generated += max(1, task.evaluation.num_generations) * objective.max_completion_length
    if CHOICE_ACCURACY not in task.evaluation.measured:
        return generated
    sampled = range(min(len(rows), _SAMPLED_ROWS))
    settings = task.dataset_settings()
    counts = [num_choices(rows, row_id, settings=settings) for row_id in sampled]
    # a choice is about as long as the answer
    return generated + float(rows.lengths.mean()) * sum(counts) / len(sampled)
