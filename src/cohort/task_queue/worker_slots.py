"""What is really going on in each slot: the worker's life and the task it holds.

The plan says who shall run where; a slot follows as soon as its worker can: it may still be starting, or saving the
state of a task that gives way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cohort.cluster.worker_pool import Slot
from cohort.task_queue.messages import Beat

__all__ = ["Limits", "WorkerSlot", "WorkerSlotState"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a worker counts as lost.

    Attributes:
        silent_seconds: Without a beat: its process is stopped or hangs as a whole.
        still_seconds: Without a step, an evaluation or a new phase of its task: a step hangs.
        start_seconds: From its start to its first word.
        stop_seconds: From the request to give a task up to its answer.
        deaths_in_a_row: Of workers that never got to work, after which the slot is given up.
        attempts: Of a task that ended by a fault without having come further than before, after which it has failed.
    """

    silent_seconds: float = 60.0
    still_seconds: float = 900.0
    start_seconds: float = 300.0
    stop_seconds: float = 300.0
    deaths_in_a_row: int = 3
    attempts: int = 3

    def __post_init__(self) -> None:
        seconds = (self.silent_seconds, self.still_seconds, self.start_seconds, self.stop_seconds)
        if min(seconds) <= 0 or min(self.deaths_in_a_row, self.attempts) < 1:
            raise ValueError(f"limits must be above 0, but these are {self}")


class WorkerSlotState(Enum):
    """What a slot's worker does."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"
    """It was asked to give its task up."""
    LOST = "lost"
    """Its slot has no worker and will get none."""


@dataclass(kw_only=True)
class WorkerSlot:
    """One slot.

    Attributes:
        slot: The slot.
        state: Of its worker.
        task: What the worker holds.
        since: When ``state`` began.
        heard: When the worker last said something.
        beat: Its last beat.
        deaths: Of workers in a row that never got to work.
        condemned: Why the head killed the worker; empty when it did not.
    """

    slot: Slot
    state: WorkerSlotState = WorkerSlotState.STARTING
    task: str | None = None
    since: float = 0.0
    heard: float = 0.0
    beat: Beat | None = None
    deaths: int = 0
    condemned: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether no worker will run here any more."""
        return self.state is WorkerSlotState.LOST

    def enter(self, state: WorkerSlotState, *, now: float) -> None:
        """Change the state."""
        self.state, self.since, self.heard = state, now, now

    def fault(self, limits: Limits, *, now: float) -> str:
        """Return why the worker must be replaced; empty when it need not be."""
        if self.state is WorkerSlotState.LOST or self.condemned:
            return ""
        if self.state is WorkerSlotState.STARTING:
            is_late = now - self.since > limits.start_seconds
            return f"said nothing within {limits.start_seconds:.0f} s of its start" if is_late else ""
        if now - self.heard > limits.silent_seconds:
            return f"silent for {now - self.heard:.0f} s"
        if self.state is WorkerSlotState.STOPPING and now - self.since > limits.stop_seconds:
            return f"did not stop within {limits.stop_seconds:.0f} s"
        is_about_task = self.beat is not None and self.beat.task is not None and self.beat.task == self.task
        if is_about_task and self.beat is not None and self.beat.still_seconds > limits.still_seconds:
            return f"its task has not moved for {self.beat.still_seconds:.0f} s ({self.beat.phase})"
        return ""
