"""Gangs: a task on several slots is run by one worker, that of its first slot, which has the devices of all of them.

A process sees the devices that it was started with, so a worker that gets other ones is ended and started again; that
happens only while it has no task. The devices of a gang's other slots are lent to the first one until the plan wants
them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cohort.machine.cluster.worker_pool import WorkerPool
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState

__all__ = ["Gangs"]

_WITHOUT_TASK = (WorkerSlotState.STARTING, WorkerSlotState.IDLE)


class Gangs:
    """Gives each worker the devices that the plan wants it to have."""

    def __init__(self, slots: Mapping[int, WorkerSlot], pool: WorkerPool, *, now: Callable[[], float]) -> None:
        """Take the slots of ``pool``; ``slots`` may grow."""
        self._slots, self._pool, self._now = slots, pool, now

    def start(self, slot: WorkerSlot, *, also: tuple[int, ...] = ()) -> None:
        """Start the worker of an empty slot, with the devices of other empty slots in addition to its own."""
        slot.kill_reason, slot.heartbeat, slot.also = "", None, also
        slot.enter(WorkerSlotState.STARTING, now=self._now())
        for slot_id in also:
            self._slots[slot_id].lent_to = slot.slot.slot_id
        self._pool.start(slot.slot.slot_id, also=also)

    def emptied(self, slot: WorkerSlot) -> None:
        """Take in that a slot's worker is gone: the devices it had from other slots are theirs again."""
        for slot_id in slot.also:
            self._slots[slot_id].lent_to = None
        slot.also, slot.heartbeat, slot.kill_reason = (), None, ""
        if not slot.is_lost:
            slot.enter(WorkerSlotState.EMPTY, now=self._now())

    def settle(self, wanted: Callable[[int], tuple[int, ...]]) -> None:
        """End workers that have other devices than the plan wants, and start those that are missing.

        Args:
            wanted: Returns the slots of the task that the plan wants in a slot now, first the one whose worker runs it;
                none where it wants no task.
        """
        for slot in self._slots.values():
            if slot.state in _WITHOUT_TASK and any(gang and gang != slot.gang for gang in map(wanted, slot.gang)):
                slot.enter(WorkerSlotState.CLEARING, now=self._now())
                self._pool.kill(slot.slot.slot_id)
        for slot_id, slot in self._slots.items():
            if not self._is_empty(slot_id):
                continue
            first, *others = wanted(slot_id) or (slot_id,)
            # the first slot of a gang waits until the workers of the others are gone, and they wait for its worker
            if first == slot_id and all(map(self._is_empty, others)):
                self.start(slot, also=tuple(others))

    def _is_empty(self, slot_id: int) -> bool:
        slot = self._slots[slot_id]
        return slot.state is WorkerSlotState.EMPTY and slot.lent_to is None
