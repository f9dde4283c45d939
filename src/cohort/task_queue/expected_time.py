"""How long a task of a queue will hold its slots, predicted before it runs and when it resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cohort.core.errors import CohortError
from cohort.planning.estimate.estimate import TaskEstimate, estimate_task, task_degrees
from cohort.planning.estimate.time_parts import START_SECONDS
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.status import read_status
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.submission import task_of

__all__ = ["ExpectedTime"]

# a TaskOption takes more than 0 seconds
_LEAST_SECONDS = 1e-3


class ExpectedTime:
    """Predicts the tasks of one queue for slots that all have the same hardware."""

    def __init__(
        self,
        directory: Path,
        hardware: Hardware,
        *,
        slots_of_node: int | None = None,
        most_gpus: int | None = None,
    ) -> None:
        """Predict for slots with ``hardware`` each.

        Args:
            directory: The queue's.
            slots_of_node: Slots of the largest machine: a task has all of its slots on one. None: enough.
            most_gpus: Most slots of one task; None: what its file says, and one for ``auto``.
        """
        self._directory, self._hardware = directory, hardware
        self._slots_of_node, self._most_gpus = slots_of_node, most_gpus
        # reading a task's rows takes long, and a queue asks what is left of each running task again and again
        self._estimates: dict[str, tuple[QueuedTask, TaskEstimate]] = {}

    def __call__(self, queued: QueuedTask) -> tuple[TaskOption, ...]:
        """Return what a task has left for each number of slots; without early exit where it has not begun.

        Raises:
            InputError: something is wrong with the task's inputs, it fits no slot, or it asks for more than there are.
        """
        task = task_of(queued)
        degrees = task_degrees(task, most_gpus=self._most_gpus, gpus_of_node=self._slots_of_node)
        # a run that has begun knows its own pace, and which trials have ended
        left = self._left(queued.name)
        if left is not None and len(degrees) == 1:
            return (TaskOption(num_gpus=degrees[0], seconds=max(left[0], _LEAST_SECONDS)),)
        options = queued.options
        # a queue that goes on may allow other numbers than when the task was added
        if {option.num_gpus for option in options} != set(degrees):
            estimate = self._estimate(queued)
            # an estimate starts a process for the task; here a worker starts once for all its tasks
            options = tuple(
                TaskOption(num_gpus=option.num_gpus, seconds=max(option.seconds - START_SECONDS, _LEAST_SECONDS))
                for option in estimate.options
            )
        if left is None:
            return options
        seconds, num_ranks = left
        before = min(options, key=lambda option: abs(option.num_gpus - num_ranks)).seconds
        return tuple(
            TaskOption(num_gpus=option.num_gpus, seconds=max(seconds * option.seconds / before, _LEAST_SECONDS))
            for option in options
        )

    def work(self, queued: QueuedTask) -> SharedWork | None:
        """Return what is left of a task in an executor that it could share; None where it shares with none.

        Raises:
            InputError: as for a call.
            RunStateError: its run cannot be read.
        """
        work = self._estimate(queued).work
        directory = RunDirectory(self._directory / queued.name)
        if work is None or not directory.database.exists():
            return work
        with RunReader.open(directory.database) as reader:
            records = reader.trials()
        # a sampler proposes further trials as others end: those that are not there yet have all their steps ahead
        planned = {trial_id: own.num_steps for trial_id, own in work.works.items()}
        left = planned | {
            entry.trial_id: 0 if entry.status.is_final else entry.planned_steps - entry.steps_done for entry in records
        }
        rest = work.with_steps(left)
        total, num_left = sum(planned.values()), sum(own.num_steps for own in rest.works.values())
        return replace(rest, other_seconds=work.other_seconds * (num_left / total if total else 0.0))

    def _estimate(self, queued: QueuedTask) -> TaskEstimate:
        known, estimate = self._estimates.get(queued.name, (None, None))
        if known is None or estimate is None or known.task != queued.task:
            estimate = estimate_task(
                task_of(queued), self._hardware, most_gpus=self._most_gpus, gpus_of_node=self._slots_of_node
            )
            self._estimates[queued.name] = (queued, estimate)
        return estimate

    def _left(self, name: str) -> tuple[float, int] | None:
        """Return what the run itself predicts, and on how many devices; None where it has not begun or cannot say."""
        directory = RunDirectory(self._directory / name)
        if not directory.database.exists():
            return None
        try:
            status = read_status(directory)
        except CohortError:
            return None
        if status.seconds_left is None:
            return None
        return status.seconds_left, status.results.facts.sizes.num_ranks or 1
