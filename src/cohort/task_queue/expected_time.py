"""How long a task of a queue will hold its slot, predicted before it runs and when it resumes."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import CohortError
from cohort.engine.estimate.estimate import estimate_task
from cohort.engine.estimate.task_costs import START_SECONDS
from cohort.runs.directory import RunDirectory
from cohort.runs.status import read_status
from cohort.scheduling.cost.hardware import Hardware
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.submission import task_of

__all__ = ["ExpectedTime"]


class ExpectedTime:
    """Predicts the tasks of one queue for workers that each have the same hardware."""

    def __init__(self, directory: Path, hardware: Hardware) -> None:
        self._directory, self._hardware = directory, hardware

    def __call__(self, queued: QueuedTask) -> float:
        """Return the seconds that a task has left; without early exit where it has not begun.

        Raises:
            InputError: something is wrong with the task's inputs, or it fits no slot.
        """
        # a run that has begun knows its own pace, and which trials have ended
        left = self._seconds_left(queued.name)
        if left is not None:
            return left
        task = task_of(queued)
        # an estimate starts a process for the task; here a worker starts once for all its tasks
        return max(estimate_task(task, self._hardware).seconds - START_SECONDS, 1e-3)

    def _seconds_left(self, name: str) -> float | None:
        """Return what the run itself predicts; None where it has not begun or cannot say yet."""
        directory = RunDirectory(self._directory / name)
        if not directory.database.exists():
            return None
        try:
            return read_status(directory).seconds_left
        except CohortError:
            return None
