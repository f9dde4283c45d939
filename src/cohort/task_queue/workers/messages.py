"""The messages between the dispatcher and its workers. As JSON: the fields, and ``kind`` with the class's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cohort.machine.cluster.worker_pool import Message

__all__ = [
    "CannotShare",
    "DispatcherMessage",
    "Heartbeat",
    "Note",
    "Ready",
    "RunTask",
    "StopTask",
    "TaskDone",
    "TaskError",
    "TaskStopped",
    "WorkerReport",
    "as_message",
    "read_message",
]


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """To a worker: begin a task in its run directory, or resume it there.

    Attributes:
        task: Its name.
        source: How messages name its task file.
        resolved: The task with every default filled in and absolute paths.
        run_directory: Its run directory.
        options: How it is carried out, fields of :class:`~cohort.engine.tune.RunOptions`.
        is_shared: Further tasks may join its executor, or it joins that of the worker's tasks.
        priority, tenant, weight: As of :class:`~cohort.task_queue.records.QueuedTask`; for a base that tenants share.
    """

    task: str
    source: str
    resolved: Mapping[str, Any]
    run_directory: str
    options: Mapping[str, Any]
    is_shared: bool = False
    priority: int = 0
    tenant: str = ""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StopTask:
    """To a worker: save the task's state at the next step boundary and give it up."""

    task: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker waits for a task."""

    process_id: int


# from a thread of its own, so that it goes on while a step takes minutes or hangs
@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A worker is alive; sent several times a second from a thread of its own.

    Attributes:
        task: What it works on; None: nothing.
        phase: In the words of :class:`~cohort.engine.train.watching.progress.RunProgress`.
        still_seconds: How long nothing has moved: no step, no evaluation, no new phase.
        steps_done, planned_steps: Optimizer steps of all trials.
        seconds_left: As the run predicts, if no further trial exits early; None when it cannot say yet.
        num_trials, num_ended, num_early: Trials, those that ended, and those of them that exited early.
        best_value: The best value of the task's metric so far.
        tokens_per_second: The speed of the last steps.
        free_share: Share of a step's tokens that the worker's tasks leave free while none of their trials waits.
    """

    task: str | None = None
    phase: str = ""
    still_seconds: float = 0.0
    steps_done: int = 0
    planned_steps: int = 0
    seconds_left: float | None = None
    num_trials: int = 0
    num_ended: int = 0
    num_early: int = 0
    best_value: float | None = None
    tokens_per_second: float | None = None
    free_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Note:
    """A line about a task for the queue's log."""

    task: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TaskDone:
    """A task has ended and its results are written."""

    task: str


@dataclass(frozen=True, kw_only=True)
class TaskStopped:
    """A worker gave a task up at a step boundary and saved its state."""

    task: str


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """A task ended by an error.

    Attributes:
        task: Its name.
        message: The error, for the user.
        is_input_error: The user's input is wrong: trying again would not help.
    """

    task: str
    message: str
    is_input_error: bool = False


@dataclass(frozen=True, kw_only=True)
class CannotShare:
    """A task is in order, but has no place in the executor of the worker's tasks; nothing of it was written."""

    task: str
    reason: str


DispatcherMessage = RunTask | StopTask
WorkerReport = Ready | Heartbeat | Note | TaskDone | TaskStopped | TaskError | CannotShare

_KINDS = {
    kind.__name__: kind
    for kind in (RunTask, StopTask, Ready, Heartbeat, Note, TaskDone, TaskStopped, TaskError, CannotShare)
}


def as_message(record: DispatcherMessage | WorkerReport) -> Message:
    return {"kind": type(record).__name__, **asdict(record)}


def read_message(message: Message) -> Any:
    """Return the record that :func:`as_message` turned into ``message``."""
    fields = dict(message)
    return _KINDS[fields.pop("kind")](**fields)
