"""How long a task of a queue is expected to hold its slot, before it runs and when it goes on."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import CohortError
from cohort.engine.run_directory import RunDirectory
from cohort.engine.status import read_status
from cohort.engine.task_file import TaskFile
from cohort.engine.task_inputs import read_inputs
from cohort.engine.task_queue.records import QueuedTask
from cohort.engine.task_queue.submission import task_of
from cohort.engine.trial_proposals import TrialProposals
from cohort.models.counts import count_model

__all__ = ["Expectation"]

# what a worker does for sure, products of a small model on one core: only the order of tasks rests on it
_FLOPS_PER_SECOND = 2e10


class Expectation:
    """Predicts tasks of one queue."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, queued: QueuedTask) -> float:
        """Return the seconds that a task has left at worst: no trial exits early.

        Raises:
            InputError: something is wrong with what the task names, or it fits no slot.
        """
        left = self._seconds_left(queued.name)
        return left if left is not None else _worst_case_seconds(task_of(queued))

    def _seconds_left(self, name: str) -> float | None:
        """Return what a run that has begun says itself; None for one that cannot tell yet."""
        directory = RunDirectory(self._directory / name)
        if not directory.database.exists():
            return None
        try:
            return read_status(directory).seconds_left
        except CohortError:
            return None


def _worst_case_seconds(task: TaskFile) -> float:
    inputs = read_inputs(task)
    train = inputs.data.train
    proposals = TrialProposals(task, num_rows=len(train), num_tokens=int(train.offsets[-1]))
    tokens = sum(trial.planned_tokens for trial in proposals.first)
    return 6.0 * count_model(inputs.config).parameters * tokens / _FLOPS_PER_SECOND
