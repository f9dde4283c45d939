"""A pool on a Ray cluster of this machine: messages, deaths, a node that is lost and one that joins."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.machine.cluster.ray import RayPool, _end_when_cut_off, connect
from cohort.machine.cluster.worker_pool import PoolEvent, SlotsGained, SlotsLost, WorkerDied, WorkerMessage
from cohort.task_queue.workers.pool import PoolRequest, open_pool
from tests.machine.cluster.ray_nodes import RayNodes, nodes

__all__ = ["nodes"]

TARGET = "tests.machine.cluster.chatting_worker:serve"


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_worker_of_a_gang_holds_what_all_its_slots_have_and_gives_it_back(nodes: RayNodes, tmp_path: Path) -> None:
    nodes.add(num_cpus=2)
    connect("auto")
    pool = RayPool(target=TARGET, log_directory=tmp_path, on_gpu=False)
    by_node: dict[str, list[int]] = {}
    for slot in pool.slots():
        by_node.setdefault(slot.node, []).append(slot.slot_id)
    ((first, second),) = (slots for slots in by_node.values() if len(slots) == 2)
    for slot_id in (first, second):
        pool.start(slot_id)
    events_until(pool, lambda events: sum(isinstance(event, WorkerMessage) for event in events) == 2)
    # as the dispatcher does: both workers end, then one starts with both slots
    for slot_id in (first, second):
        pool.kill(slot_id)
    events_until(pool, lambda events: sum(isinstance(event, WorkerDied) for event in events) == 2)
    pool.start(first, also=(second,))
    (ready,) = [event for event in events_until(pool, has(WorkerMessage)) if isinstance(event, WorkerMessage)]
    assert ready.slot_id == first
    # the actor of a slot that is lent would find no CPU
    pool.kill(first)
    events_until(pool, has(WorkerDied))
    for slot_id in (first, second):
        pool.start(slot_id)
    events_until(pool, lambda events: sum(isinstance(event, WorkerMessage) for event in events) == 2)
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


class PretendedRay:
    """A cluster that only says which nodes it has: names, CPUs and GPUs."""

    def __init__(self, **nodes: tuple[int, int]) -> None:
        self.has = nodes

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name * 8, "Alive": True, "NodeManagerHostname": name, "Resources": {"CPU": cpus, "GPU": gpus}}
            for name, (cpus, gpus) in self.has.items()
        ]

    def cluster_resources(self) -> dict[str, float]:
        gpus = sum(gpus for _, gpus in self.has.values())
        return {"GPU": gpus, "accelerator_type:H200": 1.0, "accelerator_type:A10G": 1.0} if gpus else {}


def hosts(pool: RayPool) -> list[str]:
    return sorted(slot.device.rpartition(" ")[2] for slot in pool.slots())


def test_a_node_that_was_not_needed_takes_the_place_of_one_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = PretendedRay(a=(8, 2), b=(8, 4))
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = RayPool(target=TARGET, log_directory=tmp_path, on_gpu=True, most_slots=3)
    assert hosts(pool) == ["a", "a", "b"]
    del ray.has["a"]
    pool._look_at_nodes()
    assert hosts(pool) == ["b", "b", "b"]
    assert [type(event) for event in pool.wait(0)] == [SlotsLost, SlotsGained]
    assert len({slot.device for slot in pool.slots()}) == 3, "each has a GPU of its own"
    ray.has["a"] = (8, 2)
    pool._look_at_nodes()
    assert hosts(pool) == ["b", "b", "b"]


def test_slots_of_a_lost_node_go_only_when_none_of_its_workers_can_live(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = PretendedRay(a=(8, 1), b=(8, 1))
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = RayPool(target=TARGET, log_directory=tmp_path, on_gpu=True)
    (of_a,) = [slot.slot_id for slot in pool.slots() if slot.device.endswith(" a")]
    pool._heard[of_a] = time.monotonic()
    del ray.has["a"]
    pool._look_at_nodes()
    assert hosts(pool) == ["a", "b"]
    assert pool.wait(0) == []
    pool._heard[of_a] -= 20
    pool._look_at_nodes()
    assert hosts(pool) == ["b"]
    assert [type(event) for event in pool.wait(0)] == [SlotsLost]


def test_a_process_that_is_cut_off_from_the_head_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.machine.cluster.ray._CUT_OFF_SECONDS", 0.2)
    monkeypatch.setattr("cohort.machine.cluster.ray._SECONDS_BETWEEN_CONNECTS", 0.05)
    monkeypatch.setattr(os, "_exit", sys.exit)
    head = socket.create_server(("127.0.0.1", 0))
    leaves = threading.Timer(0.5, head.close)
    began = time.monotonic()
    leaves.start()
    with pytest.raises(SystemExit):
        _end_when_cut_off(f"127.0.0.1:{head.getsockname()[1]}")
    leaves.join()
    assert time.monotonic() - began >= 0.5, "the head was there"


@pytest.mark.parametrize(
    ("gpus", "workers", "said"),
    [(2, 2, "one of the two"), (0, None, "1 or more"), (None, 0, "1 or more")],
)
def test_numbers_that_are_wrong_anywhere_are_refused_before_connecting(
    tmp_path: Path, gpus: int | None, workers: int | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        open_pool(PoolRequest(gpus=gpus, workers=workers, ray="192.0.2.1:1"), tmp_path)


def test_what_a_slot_of_a_cluster_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", PretendedRay(a=(8, 2), b=(8, 4)))
    _, hardware = open_pool(PoolRequest(ray="auto"), tmp_path)
    assert hardware.name == "A10G", "what fits the GPU with the least memory fits them all"
    pool, hardware = open_pool(PoolRequest(ray="auto", workers=8), tmp_path)
    assert len(pool.slots()) == 8
    assert hardware.name.endswith(", 1 thread")
    monkeypatch.setitem(sys.modules, "ray", PretendedRay(a=(8, 0)))
    with pytest.raises(InputError, match="a cluster without a GPU"):
        open_pool(PoolRequest(ray="auto", gpus=1), tmp_path)
