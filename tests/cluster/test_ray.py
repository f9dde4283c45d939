"""A pool on a Ray cluster of this machine: messages, deaths, a node that is lost and one that joins."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.cluster.ray import RayPool, connect
from cohort.cluster.worker_pool import PoolEvent, SlotsGained, SlotsLost, WorkerDied, WorkerMessage
from cohort.core.errors import InputError
from tests.cluster.ray_nodes import RayNodes, nodes

__all__ = ["nodes"]

TARGET = "tests.cluster.chatting_worker:serve"


def events_until(pool: RayPool, is_enough: Callable[[list[PoolEvent]], bool]) -> list[PoolEvent]:
    events: list[PoolEvent] = []
    deadline = time.monotonic() + 90
    while not is_enough(events):
        assert time.monotonic() < deadline, events
        events += pool.wait(0.5)
    return events


def has(kind: type[PoolEvent]) -> Callable[[list[PoolEvent]], bool]:
    return lambda events: any(isinstance(event, kind) for event in events)


# ray itself leaves sockets and processes to the garbage collector
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_come_go_and_speak(nodes: RayNodes, tmp_path: Path) -> None:
    connect("auto")
    pool = RayPool(target=TARGET, log_directory=tmp_path, on_gpu=False)
    first, second = pool.slots()
    assert first.node != second.node
    for slot in (first, second):
        pool.start(slot.slot_id)
    events = events_until(pool, lambda events: sum(isinstance(event, WorkerMessage) for event in events) == 2)
    process_ids = {e.slot_id: e.message["ready"] for e in events if isinstance(e, WorkerMessage)}

    pool.send(first.slot_id, {"do": "echo", "text": "hello"})
    (echo,) = events_until(pool, has(WorkerMessage))
    assert echo == WorkerMessage(slot_id=first.slot_id, message={"echo": "hello"})

    # a worker dies, its actor lives: the slot takes another
    os.kill(process_ids[first.slot_id], 9)
    (death,) = events_until(pool, has(WorkerDied))
    assert death == WorkerDied(slot_id=first.slot_id, reason="killed by SIGKILL")
    pool.start(first.slot_id)
    events_until(pool, has(WorkerMessage))

    # an actor dies: so does its worker
    pool.kill(first.slot_id)
    died = events_until(pool, has(WorkerDied))[-1]
    assert isinstance(died, WorkerDied)
    assert died.reason.startswith("its actor is gone")
    pool.start(first.slot_id)
    events_until(pool, has(WorkerMessage))

    nodes.lose(1)
    (lost,) = [event for event in events_until(pool, has(SlotsLost)) if isinstance(event, SlotsLost)]
    assert len(lost.slot_ids) == 1
    assert len(pool.slots()) == 1
    nodes.add()
    (gained,) = [event for event in events_until(pool, has(SlotsGained)) if isinstance(event, SlotsGained)]
    assert gained.slots[0].slot_id not in (first.slot_id, second.slot_id)
    pool.start(gained.slots[0].slot_id)
    events_until(pool, has(WorkerMessage))
    pool.close()


def test_without_ray_or_a_cluster_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        # None in the list of modules is how Python marks one that cannot be imported
        without.setitem(sys.modules, "ray", None)
        with pytest.raises(InputError, match=r"pip install 'cohort-lora\[ray\]'"):
            connect("auto")

    class NoCluster:
        def is_initialized(self) -> bool:
            return False

        def init(self, **_: Any) -> None:
            raise ConnectionError("nobody listens at 192.0.2.1:1")

    monkeypatch.setitem(sys.modules, "ray", NoCluster())
    with pytest.raises(InputError, match=r"nobody listens at 192\.0\.2\.1:1"):
        connect("192.0.2.1:1")
