"""The study of a task: its first trials, its exit rules and what the best checkpoint is chosen by."""

from __future__ import annotations

from cohort.prepare.objectives import searched_of_the_loss
from cohort.prepare.preparation import Preparation
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.study import Study

__all__ = ["study_of"]


def study_of(preparation: Preparation, *, metric: ObjectiveMetric) -> Study:
    """Return the study of a task's first trials.

    Args:
        metric: As recorded, not as the task says today: the rule for ties is that of the version that began the run.
    """
    return Study(
        [trial.candidate for trial in preparation.proposals.first],
        preparation.task.early_exit_settings(),
        metric=metric,
        losses_compare=not searched_of_the_loss(preparation.task),
        are_rewards=preparation.objective.samples_answers,
    )
