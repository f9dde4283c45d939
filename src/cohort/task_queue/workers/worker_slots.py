"""The real state of each slot: what its worker does and which tasks it holds.

The plan says which task should run where; a slot follows as soon as its worker can, which may still be starting, or
saving the state of a task that gives way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cohort.machine.cluster.worker_pool import Slot
from cohort.task_queue.settings import Limits
from cohort.task_queue.workers.messages import Heartbeat

__all__ = ["WorkerSlot", "WorkerSlotState"]


class WorkerSlotState(Enum):
    """What a slot's worker does."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"
    """It was asked to give a task up."""
    CLEARING = "changing devices"
    """Its worker was ended, because the plan wants its device in the worker of another slot, or back from there."""
    EMPTY = "empty"
    """It has no worker, or its device is lent to the worker of another slot."""
    LOST = "lost"
    """Its slot has no worker and will get none."""


@dataclass(kw_only=True)
class WorkerSlot:
    """A slot and its worker.

    Attributes:
        slot: Where the worker runs.
        state: What the worker does.
        tasks: What the worker holds, in the order in which they came; several share its executor.
        stopping: Those that it was asked to give up.
        is_shared: Whether further tasks may join them.
        room_at: When a task that could join was last looked for.
        since: When ``state`` began.
        last_message_at: When the worker last sent a message.
        heartbeat: The worker's last one.
        deaths: Workers in a row that died before they could work.
        also: Further slots whose devices its worker has: a task on several slots has one worker.
        lent_to: The slot whose worker has its device; None where no other has.
        kill_reason: Why the dispatcher killed the worker; empty when it did not.
    """

    slot: Slot
    state: WorkerSlotState = WorkerSlotState.STARTING
    tasks: list[str] = field(default_factory=list)
    stopping: set[str] = field(default_factory=set)
    is_shared: bool = False
    room_at: float = float("-inf")
    since: float = 0.0
    last_message_at: float = 0.0
    heartbeat: Heartbeat | None = None
    deaths: int = 0
    also: tuple[int, ...] = ()
    lent_to: int | None = None
    kill_reason: str = ""

    @property
    def is_lost(self) -> bool:
        return self.state is WorkerSlotState.LOST

    @property
    def gang(self) -> tuple[int, ...]:
        """Its own number and those of the slots whose devices its worker has."""
        return (self.slot.slot_id, *self.also)

    @property
    def task(self) -> str | None:
        """The task that has been there longest."""
        return self.tasks[0] if self.tasks else None

    def enter(self, state: WorkerSlotState, *, now: float) -> None:
        self.state, self.since, self.last_message_at = state, now, now

    def fault(self, limits: Limits, *, now: float) -> str:
        """Return why the worker must be replaced; empty when it need not be."""
        # a worker that was killed reports its death itself: killing it twice would say so twice
        if self.kill_reason or self.state in (
            WorkerSlotState.LOST, WorkerSlotState.EMPTY, WorkerSlotState.CLEARING
        ):  # fmt: skip
            return ""
        if self.state is WorkerSlotState.STARTING:
            # its first heartbeat comes only after it has imported torch
            is_late = now - self.since > limits.start_seconds
            return f"sent nothing within {limits.start_seconds:.0f} s of its start" if is_late else ""
        if now - self.last_message_at > limits.silent_seconds:
            return f"silent for {now - self.last_message_at:.0f} s"
        if self.state is WorkerSlotState.STOPPING and now - self.since > limits.stop_seconds:
            return f"did not stop within {limits.stop_seconds:.0f} s"
        # heartbeats come from a thread of their own, so they go on while a step hangs: they say how long nothing moved
        beat = self.heartbeat
        is_about_task = beat is not None and beat.task is not None and beat.task in self.tasks
        if beat is not None and is_about_task and beat.still_seconds > limits.still_seconds:
            # several that share an executor move together
            return f"its task has made no progress for {beat.still_seconds:.0f} s ({beat.phase})"
        return ""
