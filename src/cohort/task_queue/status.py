"""The status of a queue, and of a task in it that has not started, as data; the command line draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.results.verdicts import is_worse
from cohort.runs.status import read_status
from cohort.task_queue.progress import QueueProgress, TaskView, view_queue
from cohort.task_queue.records import TaskDecision, TaskState
from cohort.task_queue.store import find_queue, open_queue, queue_holder
from cohort.tuning.trial_status import TrialStatus

__all__ = [
    "QueueStatus",
    "UnstartedTask",
    "queue_status_json",
    "read_queue_status",
    "read_unstarted_task",
    "unstarted_task_json",
]

# a trial that failed ended before its planned steps as well
_EARLY = (TrialStatus.STOPPED, TrialStatus.FAILED)


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """A queue at one moment.

    Attributes:
        directory: The queue's directory.
        holder: The process that works it off; empty when none does.
        progress: Its tasks.
        metric_labels: By task that has started, what its best value is.
        worse: The tasks that are done and whose best adapter is worse than the base model.
    """

    directory: Path
    holder: str
    progress: QueueProgress
    metric_labels: dict[str, str]
    worse: tuple[str, ...] = ()

    @property
    def are_all_done(self) -> bool:
        """Whether every task that the user wants has its result."""
        return all(task.state in (TaskState.DONE, TaskState.REMOVED) for task in self.progress.tasks)


def read_queue_status(directory: Path) -> QueueStatus:
    """Read where the queue in ``directory`` stands, without disturbing a process that works it off.

    Raises:
        InputError: there is no queue.
    """
    holder = queue_holder(directory) or ""
    # a dispatcher may be writing: reading takes no lock of the queue
    with open_queue(directory) as store:
        began = store.facts().began_at
        now = (datetime.now(UTC) - began).total_seconds() if began else 0.0
        progress = view_queue(store, now=now)
    tasks, labels, worse = [], {}, []
    for task in progress.tasks:
        view, label, has_worse = _with_run(task, RunDirectory(directory / task.name))
        # a dispatcher that was killed leaves tasks as running and a plan behind: without one, nothing runs or will
        tasks.append(view if holder else _unattended(view))
        if label:
            labels[task.name] = label
        if has_worse and task.state is TaskState.DONE:
            worse.append(task.name)
    progress = replace(progress, tasks=tuple(tasks), end_seconds=progress.end_seconds if holder else None)
    return QueueStatus(directory=directory, holder=holder, progress=progress, metric_labels=labels, worse=tuple(worse))


def _unattended(task: TaskView) -> TaskView:
    state = TaskState.QUEUED if task.state is TaskState.RUNNING else task.state
    return replace(task, state=state, device="", shares_with=(), phase="", expected_start=None, expected_end=None)


def _with_run(task: TaskView, directory: RunDirectory) -> tuple[TaskView, str, bool]:
    """Return the view with the trials and values of its run, the label of its metric, and whether its best adapter is
    worse than the base model.
    """
    if not directory.database.exists():
        return task, "", False
    # heartbeats reach the dispatcher alone, so another process reads the run's own database
    # a run that is just being created, or is damaged: what the queue itself knows is shown
    try:
        status = read_status(directory)
    except CohortError:
        return task, "", False
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
    return view, status.results.metric_label, is_worse(status.results)


def queue_status_json(status: QueueStatus) -> dict[str, Any]:
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
                **_values(task, "reason", "priority"),
                "run_directory": str(status.directory / task.name),
                "device": task.device or None,
                "shares_with": list(task.shares_with),
                **_values(task, "num_trials", "num_ended", "num_early", "share_done"),
                "metric": status.metric_labels.get(task.name),
                "is_worse": task.name in status.worse,
                **_values(task, "best_value", "expected_seconds", "held_seconds"),
                "expected_start_seconds": task.expected_start,
                "expected_end_seconds": task.expected_end,
                "planned_start_seconds": task.planned_start,
                "planned_end_seconds": task.planned_end,
                "start_seconds": task.actual_start,
                "end_seconds": task.actual_end,
            }
            for task in progress.tasks
        ],
    }


def _values(record: TaskView | UnstartedTask, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class UnstartedTask:
    """A task whose run directory does not exist yet, at one moment.

    Attributes:
        task: As the queue shows it.
        queue: Directory of its queue.
        holder: The process that works the queue off; empty when none does.
        ahead: (name, where it runs or empty) of the tasks that have the same slots before it by the present plan.
        begins_in_seconds: By the present plan; None when no plan holds it.
        ends_in_seconds: By the present plan, without early exit.
    """

    task: TaskView
    queue: Path
    holder: str
    ahead: tuple[tuple[str, str], ...]
    begins_in_seconds: float | None
    ends_in_seconds: float | None

    @property
    def waits_for(self) -> str:
        """What has to happen before it begins, in words; empty where nothing will or it begins now."""
        if self.task.state is not TaskState.QUEUED:
            return ""
        if not self.holder:
            return "a process that runs the queue"
        if self.begins_in_seconds is None:
            return "the next plan"
        ahead = ", ".join(f"{name} ({f'runs on {device}' if device else 'waits'})" for name, device in self.ahead)
        return f"the end of {ahead}" if ahead else "a free worker"


def read_unstarted_task(directory: Path) -> UnstartedTask | None:
    """Return the task whose run directory ``directory`` will be; None where there is no such task.

    Raises:
        RunStateError: the queue cannot be read.
    """
    queue, name = directory.absolute().parent, directory.absolute().name
    if (directory.exists() and RunDirectory(directory).holds_run()) or not find_queue(queue):
        return None
    status = read_queue_status(directory.parent)
    task = next((task for task in status.progress.tasks if task.name == name), None)
    if task is None:
        return None
    with open_queue(queue) as store:
        plan, _ = store.last_plan()
    start, end, now = task.expected_start, task.expected_end, status.progress.now_seconds
    is_planned = bool(status.holder) and start is not None and end is not None
    return UnstartedTask(
        task=task,
        queue=directory.parent,
        holder=status.holder,
        ahead=_ahead(name, status.progress.tasks, plan) if is_planned else (),
        begins_in_seconds=None if start is None else max(start - now, 0.0),
        ends_in_seconds=None if end is None else max(end - now, 0.0),
    )


def _ahead(name: str, tasks: Sequence[TaskView], plan: TaskDecision | None) -> tuple[tuple[str, str], ...]:
    # the plan orders tasks by slot; only those that share a slot make this one wait
    recorded = plan.numbers["placements"] if plan is not None else ()
    placements = sorted(recorded, key=lambda entry: float(entry["start_seconds"]))
    mine = next((entry for entry in placements if entry["task"] == name), None)
    if mine is None:
        return ()
    by_name = {task.name: task for task in tasks if not task.state.is_final}
    return tuple(
        (entry["task"], by_name[entry["task"]].device)
        for entry in placements
        if entry["task"] in by_name
        and entry["start_seconds"] < mine["start_seconds"]
        and set(entry["slots"]) & set(mine["slots"])
    )


def unstarted_task_json(unstarted: UnstartedTask) -> dict[str, Any]:
    return {
        "state": unstarted.task.state.value,
        "task": unstarted.task.name,
        "queue": str(unstarted.queue),
        "holder": unstarted.holder or None,
        **_values(unstarted.task, "reason", "priority"),
        "waits_for": unstarted.waits_for,
        "ahead": [name for name, _ in unstarted.ahead],
        **_values(unstarted, "begins_in_seconds", "ends_in_seconds"),
        **_values(unstarted.task, "expected_seconds"),
    }
