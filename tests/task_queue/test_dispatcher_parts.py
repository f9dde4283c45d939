"""The devices of a worker are those of all slots of its gang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cohort.machine.cluster.worker_pool import Slot
from cohort.task_queue.dispatcher_parts import DispatcherParts
from cohort.task_queue.workers.worker_slots import WorkerSlot


def test_a_gang_has_the_devices_of_its_slots_in_order() -> None:
    nothing: Any = SimpleNamespace()
    slots = {number: WorkerSlot(slot=Slot(slot_id=number, node="n", device=f"cuda:{number}")) for number in range(3)}
    slots[1].also = (2,)
    names = ("store", "pool", "log", "replanner", "gangs", "task_states", "settings", "directory", "watcher")
    parts = DispatcherParts(slots=slots, **dict.fromkeys(names, nothing))
    assert parts.devices(slots[1]) == "cuda:1, cuda:2"
    assert parts.devices(slots[0]) == "cuda:0"
