"""What the trials of a task minimise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.tasks.task_file import TaskFile
from cohort.training.objectives import objective_named
from cohort.training.objectives.objective import Objective

__all__ = ["searched_of_the_loss", "task_objective"]


def task_objective(task: TaskFile, values: Mapping[str, Any] | None = None) -> Objective:
    """Return a trial's objective; ``values`` are its hyperparameters, None those of a trial that searches nothing."""
    section = task.objective
    # of mismatched rows: they may be no longer than the others
    known = {**section.values, "max_length": task.dataset.max_length, "function": section.function}
    return objective_named(section.type).with_values({**known, **(values or {})})


def searched_of_the_loss(task: TaskFile) -> list[str]:
    """Return the keys of the objective that are searched: losses of trials that differ in one have other scales.

    None where losses are rewards: these are of one scale, whatever a trial minimises for them.
    """
    if task_objective(task).samples_answers:
        return []
    return [name for name in task.objective.declared.values if name in task.search.space]
