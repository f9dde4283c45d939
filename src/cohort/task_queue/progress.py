"""What a working queue tells those who watch: immutable snapshots, and the protocol of a watcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cohort.task_queue.records import TaskState

__all__ = ["QueueProgress", "QueueWatcher", "SilentQueueWatcher", "SlotView", "TaskView"]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """One task at one moment. Times are seconds of the queue's clock.

    Attributes:
        name, priority, state, reason: As in the queue.
        device: Where it runs; empty when it does not.
        phase: What its run is doing, in words.
        num_trials, num_ended, num_early: Trials, those that ended, and those of them that exited early.
        share_done: Of the planned steps; None before it runs.
        best_value: Of its metric so far.
        expected_seconds: Predicted before it first ran, without early exit.
        held_seconds: It held slots for so long so far.
        planned_start, planned_end: Of the first plan that held it.
        expected_start, expected_end: Of the present plan.
        actual_start, actual_end: First start and last end.
    """

    name: str
    priority: int
    state: TaskState
    reason: str = ""
    device: str = ""
    phase: str = ""
    num_trials: int = 0
    num_ended: int = 0
    num_early: int = 0
    share_done: float | None = None
    best_value: float | None = None
    expected_seconds: float | None = None
    held_seconds: float = 0.0
    planned_start: float | None = None
    planned_end: float | None = None
    expected_start: float | None = None
    expected_end: float | None = None
    actual_start: float | None = None
    actual_end: float | None = None


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot at one moment: its device, what its worker does, and with which task."""

    slot_id: int
    device: str
    state: str
    task: str


@dataclass(frozen=True, kw_only=True)
class QueueProgress:
    """A queue at one moment.

    Attributes:
        now_seconds: Of the queue's clock.
        tasks: All, in the order they were added.
        slots: All there are.
        end_seconds: When the plan expects the last task to end; None when nothing is left to do.
        num_plans: Made so far.
    """

    now_seconds: float
    tasks: tuple[TaskView, ...] = ()
    slots: tuple[SlotView, ...] = ()
    end_seconds: float | None = None
    num_plans: int = 0

    def count(self, state: TaskState) -> int:
        """Return how many tasks are in ``state``."""
        return sum(task.state is state for task in self.tasks)


class QueueWatcher(Protocol):
    """Whoever shows progress; calls come from the head's thread and must return quickly."""

    def update(self, progress: QueueProgress) -> None:
        """Take a snapshot, several a second at most."""
        ...

    def note(self, text: str) -> None:
        """Take one line worth keeping."""
        ...


class SilentQueueWatcher:
    """Shows nothing."""

    def update(self, progress: QueueProgress) -> None:
        """Drop the snapshot."""

    def note(self, text: str) -> None:
        """Drop the line."""
