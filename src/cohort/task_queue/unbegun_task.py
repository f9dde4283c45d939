"""What ``cohort status`` shows of a task of a queue whose run has not begun: that it waits, for what, until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.runs.directory import RunDirectory
from cohort.task_queue.operations import find_queue, open_queue
from cohort.task_queue.progress import TaskView
from cohort.task_queue.records import TaskDecision, TaskState
from cohort.task_queue.status import read_queue_status

__all__ = ["UnbegunTask", "read_unbegun_task", "unbegun_task_json"]


@dataclass(frozen=True, kw_only=True)
class UnbegunTask:
    """A task whose run directory does not exist yet, at one moment.

    Attributes:
        task: As the queue shows it.
        queue: Directory of its queue.
        holder: The process that works the queue off; empty when none does.
        ahead: (name, where it runs or empty) of the tasks that have the same slots before it by the present plan.
        begins_in_seconds: By the present plan; None when no plan holds it.
        ends_in_seconds: Likewise, without early exit.
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
            return "somebody to work the queue off"
        if self.begins_in_seconds is None:
            return "the next plan"
        ahead = ", ".join(f"{name} ({f'runs on {device}' if device else 'waits'})" for name, device in self.ahead)
        return f"the end of {ahead}" if ahead else "a worker to take it up"


def read_unbegun_task(directory: Path) -> UnbegunTask | None:
    """Return where the task stands whose run directory ``directory`` will be; None where there is no such task.

    Raises:
        RunStateError: the queue cannot be read.
    """
    queue, name = directory.absolute().parent, directory.absolute().name
    if directory.exists() and RunDirectory(directory).holds_run():
        return None
    if not find_queue(queue):
        return None
    status = read_queue_status(directory.parent)
    task = next((task for task in status.progress.tasks if task.name == name), None)
    if task is None:
        return None
    with open_queue(queue) as store:
        plan, _ = store.last_plan()
    now, planned = status.progress.now_seconds, task.expected_start is not None and task.expected_end is not None
    return UnbegunTask(
        task=task,
        queue=directory.parent,
        holder=status.holder,
        ahead=_ahead(name, status.progress.tasks, plan) if status.holder and planned else (),
        begins_in_seconds=None if task.expected_start is None else max(task.expected_start - now, 0.0),
        ends_in_seconds=None if task.expected_end is None else max(task.expected_end - now, 0.0),
    )


def _ahead(name: str, tasks: Sequence[TaskView], plan: TaskDecision | None) -> tuple[tuple[str, str], ...]:
    placements: Sequence[Mapping[str, Any]] = plan.numbers["placements"] if plan is not None else ()
    mine = next((entry for entry in placements if entry["task"] == name), None)
    if mine is None:
        return ()
    by_name = {task.name: task for task in tasks}
    before = [
        entry
        for entry in sorted(placements, key=lambda entry: float(entry["start_seconds"]))
        if entry["start_seconds"] < mine["start_seconds"] and set(entry["slots"]) & set(mine["slots"])
    ]
    found = (by_name[entry["task"]] for entry in before if entry["task"] in by_name)
    return tuple((task.name, task.device) for task in found if not task.state.is_final)


def unbegun_task_json(unbegun: UnbegunTask) -> dict[str, Any]:
    """Return the same for machines."""
    return {
        "state": unbegun.task.state.value,
        "task": unbegun.task.name,
        "queue": str(unbegun.queue),
        "holder": unbegun.holder or None,
        "reason": unbegun.task.reason,
        "priority": unbegun.task.priority,
        "waits_for": unbegun.waits_for,
        "ahead": [name for name, _ in unbegun.ahead],
        "begins_in_seconds": unbegun.begins_in_seconds,
        "ends_in_seconds": unbegun.ends_in_seconds,
        "expected_seconds": unbegun.task.expected_seconds,
    }
