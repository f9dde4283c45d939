"""Several tasks on several GPUs, from Python: a queue that is worked off in the parent of the run directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError
from cohort.engine.train.progress import ProgressWatcher
from cohort.engine.tune import RunOptions
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.head_settings import HeadSettings
from cohort.task_queue.operations import enqueue, work_off
from cohort.task_queue.pool import PoolRequest, open_pool
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import TaskState
from cohort.task_queue.submission import submission_of
from cohort.tasks.loading import TaskFile

__all__ = ["run_on_several_gpus"]


class _Notes:
    """Hands a queue's lines to the watcher of a run; a table of trials says nothing of several tasks."""

    def __init__(self, watcher: ProgressWatcher | None) -> None:
        self._watcher = watcher

    def update(self, progress: QueueProgress) -> None:
        """Drop the snapshot."""

    def note(self, text: str) -> None:
        if self._watcher is not None:
            self._watcher.note(text)


def run_on_several_gpus(
    files: Mapping[str, TaskFile],
    directory: Path,
    *,
    num_gpus: int,
    watcher: ProgressWatcher | None,
    options: RunOptions | None,
    clock: Clock | None,
) -> dict[str, CohortError]:
    """Tune tasks on ``num_gpus`` GPUs, one on each; return what went wrong, by task name.

    Args:
        files: Checked tasks by name, in the order of submission.
        directory: Parent of their run directories; the queue goes there as well.
        num_gpus: GPUs to use.
        watcher: Told of what the queue decides.
        options: How runs are carried out.
        clock: Of the queue.

    Raises:
        InputError: there are fewer GPUs, or a task fits none.
        KeyboardInterrupt: interrupted, with everything saved; ``cohort resume DIRECTORY`` goes on.
    """
    clock = clock or SystemClock()
    pool, hardware = open_pool(PoolRequest(gpus=num_gpus), directory)
    expect = ExpectedTime(directory, hardware)
    enqueue([submission_of(name, file, clock=clock) for name, file in files.items()], directory, expect=expect)
    settings = HeadSettings(options=options or RunOptions())
    tasks = work_off(directory, pool, expect=expect, settings=settings, watcher=_Notes(watcher), clock=clock)
    return {
        task.name: CohortError(f"{task.state.value}: {task.reason}")
        for task in tasks
        if task.name in files and task.state is not TaskState.DONE
    }
