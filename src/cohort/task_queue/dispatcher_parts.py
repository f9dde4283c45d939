"""What a dispatcher works with: one queue, its workers and the plan for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cohort.machine.cluster.worker_pool import WorkerPool
from cohort.task_queue.log import QueueLog
from cohort.task_queue.progress import QueueWatcher
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.task_states import TaskStates
from cohort.task_queue.workers.gangs import Gangs
from cohort.task_queue.workers.worker_slots import WorkerSlot

__all__ = ["DispatcherParts"]


@dataclass(frozen=True, kw_only=True)
class DispatcherParts:
    """One of each; all of them belong to the same queue.

    Attributes:
        slots: By number; grows when slots join.
    """

    store: QueueStore
    pool: WorkerPool
    slots: dict[int, WorkerSlot]
    log: QueueLog
    replanner: Replanner
    gangs: Gangs
    task_states: TaskStates
    settings: DispatcherSettings
    directory: Path
    watcher: QueueWatcher

    def devices(self, slot: WorkerSlot) -> str:
        """Return the names of the devices that the slot's worker has."""
        return ", ".join(self.slots[slot_id].slot.device for slot_id in slot.gang)
