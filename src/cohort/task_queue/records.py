"""The records of a task queue, immutable. Times are seconds of the queue's own clock, from its first dispatcher on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, TypedDict

from cohort.scheduling.placement.records import TaskOption

__all__ = ["Expecting", "QueueFactUpdates", "QueueFacts", "QueuedTask", "RunStretch", "TaskDecision", "TaskState"]


class TaskState(Enum):
    """Where a task of a queue stands."""

    QUEUED = "queued"
    """Waits for a slot; it may have run before."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Given up; its ``reason`` says why."""
    HELD = "held"
    """Not begun, because its file or data are no longer what was added."""
    REMOVED = "removed"
    """Taken off the queue by the user."""

    @property
    def is_final(self) -> bool:
        """Whether it stays as it is unless the user acts."""
        return self not in (TaskState.QUEUED, TaskState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """Facts about a queue as a whole.

    Attributes:
        began_at: The wall clock at the queue's first dispatcher; None before that.
        last_dispatcher_seconds: The queue's clock when a dispatcher was last there; None before the first.
        request: The options of the last ``cohort run``.
        tenant_charges: What tenants were charged, of :class:`~cohort.task_queue.tenant_turns.FairTurns`; None: nothing.
    """

    began_at: datetime | None = None
    last_dispatcher_seconds: float | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    tenant_charges: Mapping[str, Any] | None = None


class QueueFactUpdates(TypedDict, total=False):
    """Facts to set, by field of :class:`QueueFacts`."""

    began_at: datetime
    last_dispatcher_seconds: float
    request: Mapping[str, Any]
    tenant_charges: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class QueuedTask:
    """A task of a queue.

    Attributes:
        name: The name of the task and its run directory.
        source: The task file as it was added, absolute.
        task: The resolved task.
        digests: SHA-256 of the task file and of every local data file, by absolute path.
        priority: Higher goes first.
        added_at: Wall clock, ISO 8601.
        state: Where it stands.
        reason: Why it failed, is held, or waits again; empty otherwise.
        is_withdrawn: The user wants it off the queue.
        expected_seconds: Predicted before it first ran, without early exit; None until then.
        attempts: Faults since it last made progress.
        planned_slot, planned_start, planned_end: As in the first plan that held it; None before. Of several slots, the
            first.
        options: Numbers of slots it may have at the same time, and its seconds on each, before it first ran; empty
            until then.
        tenant: Whose it is, where several share a base model; the empty name is a tenant like any other.
        weight: Of its tenant: what share of the base model it has next to others.
    """

    name: str
    source: str
    task: Mapping[str, Any]
    digests: Mapping[str, str]
    priority: int
    added_at: str
    state: TaskState = TaskState.QUEUED
    reason: str = ""
    is_withdrawn: bool = False
    expected_seconds: float | None = None
    attempts: int = 0
    planned_slot: int | None = None
    planned_start: float | None = None
    planned_end: float | None = None
    options: tuple[TaskOption, ...] = ()
    tenant: str = ""
    weight: float = 1.0


Expecting = Callable[[QueuedTask], tuple[TaskOption, ...]]
"""Returns the numbers of slots a task may have, fewest first, with the seconds it has left on each at worst."""


# a task has several where it gave way, its worker died or the queue was stopped, and one for each slot of a gang
@dataclass(frozen=True, kw_only=True)
class RunStretch:
    """A stretch of time in which a task held a slot; ``outcome`` is empty while it lasts."""

    task: str
    slot_id: int
    device: str
    start_seconds: float
    end_seconds: float | None = None
    outcome: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskDecision:
    """Something that the dispatcher noticed or decided.

    Attributes:
        seconds: When.
        kind: ``plan``, ``start``, ``share``, ``preempt``, ``end``, ``fail``, ``hold``, ``remove``, ``reestimate``,
            ``worker``, ``dispatcher``, ``note``.
        task: Which task it is about; empty when it is about none.
        text: In words.
        numbers: The figures it rests on, JSON.
    """

    seconds: float
    kind: str
    task: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
