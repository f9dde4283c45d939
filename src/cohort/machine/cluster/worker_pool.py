"""The protocol of a worker pool: slots, the workers in them, and what happens to both.

A **slot** is room for one worker: one GPU, or a share of a machine's CPU cores. A **worker** is a process with its own
device, which runs one task at a time and exchanges messages (JSON objects) with the dispatcher. The pool does not read
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "Message",
    "PoolEvent",
    "Slot",
    "SlotsGained",
    "SlotsLost",
    "WorkerChannel",
    "WorkerDied",
    "WorkerMessage",
    "WorkerPool",
]

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Room for one worker.

    Attributes:
        slot_id: Unique within the pool, never used again for another place.
        node: Name of the machine.
        device: What it computes on, in words (``GPU 0``, ``CPU worker 0 (1 thread)``).
        is_cpu: Whether its worker computes on CPU cores, so that a task's ``num_gpus`` counts processes.
    """

    slot_id: int
    node: str
    device: str
    is_cpu: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerMessage:
    """A worker sent a message."""

    slot_id: int
    message: Message


@dataclass(frozen=True, kw_only=True)
class WorkerDied:
    """A worker is gone; ``reason`` says how, in words. Its slot is free for another."""

    slot_id: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotsLost:
    """Slots are gone with their workers: a node was lost."""

    slot_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotsGained:
    """Slots joined; no worker runs in them yet."""

    slots: tuple[Slot, ...]


PoolEvent = WorkerMessage | WorkerDied | SlotsLost | SlotsGained


class WorkerPool(Protocol):
    """Slots and their workers, as the dispatcher sees them."""

    @property
    def can_grow(self) -> bool:
        """Whether slots may join later, so that waiting without any makes sense."""
        ...

    def slots(self) -> tuple[Slot, ...]:
        """Return the present slots."""
        ...

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        """Begin a worker in a slot that has none. Where it cannot begin, its death is the event.

        Args:
            also: Slots of the same node without workers, whose devices this worker gets in addition to its own slot's.
        """
        ...

    def send(self, slot_id: int, message: Message) -> None:
        """Send a message to the slot's worker; without a worker it is dropped, since the death was an event."""
        ...

    def kill(self, slot_id: int) -> None:
        """End the slot's worker and all it started, at once; its death is an event like any other."""
        ...

    def wait(self, timeout_seconds: float) -> Sequence[PoolEvent]:
        """Return what happened, as soon as something did; nothing after ``timeout_seconds``."""
        ...

    def close(self) -> None:
        """End all workers; harmless when done before."""
        ...


class WorkerChannel(Protocol):
    """The dispatcher, as a worker sees it."""

    def send(self, message: Message) -> None:
        """Send a message to the dispatcher, from any thread."""
        ...

    def receive(self) -> Message | None:
        """Return the dispatcher's next message; None when it is gone, and the worker has to end."""
        ...
