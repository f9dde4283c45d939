"""How long a task of a queue is expected to hold its slot, before it runs and when it goes on."""

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
    """Predicts tasks of one queue."""

    def __init__(self, directory: Path, hardware: Hardware) -> None:
        """Predict tasks of the queue in ``directory`` for workers that each have ``hardware``."""
        self._directory, self._hardware = directory, hardware

    def __call__(self, queued: QueuedTask) -> float:
        """Return the seconds that a task has left; at worst, without early exit, where it has not begun.

        Raises:
            InputError: something is wrong with what the task names, or it fits no slot.
        """
        left = self._seconds_left(queued.name)
        if left is not None:
            return left
        task = task_of(queued)
        # a worker starts once and then runs one task after the other
        return max(estimate_task(task, self._hardware).seconds - START_SECONDS, 1e-3)

    def _seconds_left(self, name: str) -> float | None:
        """Return what a run that has begun says itself; None for one that cannot tell yet."""
        directory = RunDirectory(self._directory / name)
        if not directory.database.exists():
            return None
        try:
            return read_status(directory).seconds_left
        except CohortError:
            return None
