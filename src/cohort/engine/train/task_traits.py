"""What a supervisor knows of its task."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cohort.engine.train.planned_course import PlannedCourse

__all__ = ["TaskTraits"]


@dataclass(frozen=True, kw_only=True)
class TaskTraits:
    """What decides which trials of a task are resident, or have to be kept; none of it changes a trial's numbers.

    Attributes:
        mean_length: Mean tokens of a training row.
        priority: Trials of a task with a higher one take the slots of a lower one at the next step.
        arrival: The task's place among those that share the executor.
        are_trials_complete: Returns whether no further trial will be proposed.
        trials_of_results: Returns the trials whose best checkpoints the results are made from, once all have ended;
            None: all.
        course: The plan of packs that the task's trials follow while no other task has the executor, too.
        trials_to_forget: Returns those that lost and whose best checkpoints the task does not keep.
    """

    mean_length: float
    priority: int = 0
    arrival: int = 0
    are_trials_complete: Callable[[], bool] = lambda: False
    trials_of_results: Callable[[], Collection[int] | None] = lambda: None
    course: PlannedCourse | None = None
    trials_to_forget: Callable[[], Collection[int]] = lambda: ()
