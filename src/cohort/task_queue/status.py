"""What ``cohort status`` shows of a queue: where it stands, as data. The command line draws it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialStatus
from cohort.runs.status import read_status
from cohort.task_queue.operations import open_queue, queue_holder
from cohort.task_queue.progress import QueueProgress, TaskView
from cohort.task_queue.records import TaskState
from cohort.task_queue.view import view_queue

__all__ = ["QueueStatus", "queue_status_json", "read_queue_status"]

_EARLY = (TrialStatus.STOPPED, TrialStatus.FAILED)


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """A queue at one moment.

    Attributes:
        directory: Of the queue.
        holder: The process that works it off; empty when none does.
        progress: Its tasks.
        metric_labels: By task that has begun, what its best value is.
    """

    directory: Path
    holder: str
    progress: QueueProgress
    metric_labels: dict[str, str]

    @property
    def are_all_done(self) -> bool:
        """Whether every task that the user wants has its result."""
        return all(task.state in (TaskState.DONE, TaskState.REMOVED) for task in self.progress.tasks)


def read_queue_status(directory: Path) -> QueueStatus:
    """Read where the queue in ``directory`` stands; disturbs nobody who works it off.

    When nobody does, nothing runs and no end is expected, whatever a head that was killed has left behind.

    Raises:
        InputError: there is no queue.
    """
    holder = queue_holder(directory) or ""
    with open_queue(directory) as store:
        began = store.facts().get("began_at")
        now = (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds() if began else 0.0
        progress = view_queue(store, now=now)
    tasks, labels = [], {}
    for task in progress.tasks:
        view, label = _with_run(task, RunDirectory(directory / task.name))
        tasks.append(view if holder else _unattended(view))
        if label:
            labels[task.name] = label
    if not holder:
        progress = replace(progress, end_seconds=None)
    return QueueStatus(
        directory=directory, holder=holder, progress=replace(progress, tasks=tuple(tasks)), metric_labels=labels
    )


def _unattended(task: TaskView) -> TaskView:
    """Return a task as it is while nobody works the queue off: one that ran waits to go on from its checkpoint."""
    state = TaskState.QUEUED if task.state is TaskState.RUNNING else task.state
    return replace(task, state=state, device="", phase="", expected_start=None, expected_end=None)


def _with_run(task: TaskView, directory: RunDirectory) -> tuple[TaskView, str]:
    """Return the view with what its run directory says of trials and values."""
    if not directory.database.exists():
        return task, ""
    try:
        status = read_status(directory)
    except CohortError:
        return task, ""
    planned = sum(entry.trial.planned_steps for entry in status.trials)
    done = sum(entry.trial.steps_done for entry in status.trials)
    early = sum(status.counts[state] for state in _EARLY)
    best = status.results.best
    view = replace(
        task,
        num_trials=len(status.trials),
        num_early=early,
        num_ended=early + status.counts[TrialStatus.COMPLETED],
        share_done=done / planned if planned else None,
        best_value=None if best is None else best.best_value,
    )
    return view, status.results.metric_label


def queue_status_json(status: QueueStatus) -> dict[str, Any]:
    """Return a queue's status for machines."""
    progress = status.progress
    return {
        "directory": str(status.directory),
        "holder": status.holder or None,
        "seconds": progress.now_seconds,
        "end_seconds": progress.end_seconds,
        "num_plans": progress.num_plans,
        "tasks": [
            {
                "name": task.name,
                "state": task.state.value,
                "reason": task.reason,
                "priority": task.priority,
                "run_directory": str(status.directory / task.name),
                "device": task.device or None,
                "num_trials": task.num_trials,
                "num_ended": task.num_ended,
                "num_early": task.num_early,
                "share_done": task.share_done,
                "metric": status.metric_labels.get(task.name),
                "best_value": task.best_value,
                "expected_seconds": task.expected_seconds,
                "held_seconds": task.held_seconds,
                "planned_start_seconds": task.planned_start,
                "planned_end_seconds": task.planned_end,
                "start_seconds": task.actual_start,
                "end_seconds": task.actual_end,
            }
            for task in progress.tasks
        ],
    }
