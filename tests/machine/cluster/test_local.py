"""Worker processes: messages both ways, deaths of every kind noticed, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.machine.cluster.local import LocalPool, LocalSlot, cpu_slots, gpu_slots
from cohort.machine.cluster.worker_pool import PoolEvent, WorkerDied, WorkerMessage
from tests.conftest import REPOSITORY
from tests.machine.cluster.chatting_worker import LONG_SECONDS
from tests.support.process_states import wait_until_gone

# no goal: a machine may be as busy as it likes, but a test that hangs has to end
HANGS_AFTER_SECONDS = 300
TARGET = "tests.machine.cluster.chatting_worker:serve"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'src'}:{REPOSITORY}")


@pytest.fixture
def pool(tmp_path: Path, importable: None) -> Iterator[LocalPool]:
    pool = LocalPool(cpu_slots(2, num_threads=1), target=TARGET, log_directory=tmp_path / "logs")
    yield pool
    pool.close()


def events_until(pool: LocalPool, is_enough: Callable[[list[PoolEvent]], bool]) -> list[PoolEvent]:
    events: list[PoolEvent] = []
    deadline = time.monotonic() + HANGS_AFTER_SECONDS
    while not is_enough(events):
        assert time.monotonic() < deadline, events
        events += pool.wait(0.5)
    return events


def message_of(pool: LocalPool, slot_id: int, key: str) -> dict[str, Any]:
    def find(events: list[PoolEvent]) -> list[WorkerMessage]:
        return [e for e in events if isinstance(e, WorkerMessage) and e.slot_id == slot_id and key in e.message]

    return dict(find(events_until(pool, lambda events: bool(find(events))))[0].message)


def death_of(pool: LocalPool, slot_id: int) -> WorkerDied:
    def find(events: list[PoolEvent]) -> list[WorkerDied]:
        return [event for event in events if isinstance(event, WorkerDied) and event.slot_id == slot_id]

    return find(events_until(pool, lambda events: bool(find(events))))[0]


def test_messages_go_both_ways_and_a_death_is_noticed_while_a_child_lives(pool: LocalPool) -> None:
    pool.start(0)
    ready = message_of(pool, 0, "ready")
    assert ready == {"ready": pool.process_id(0), "gpus": ""}
    text = "many words " * 20_000
    pool.send(0, {"do": "echo", "text": text})
    assert message_of(pool, 0, "echo") == {"echo": text}

    pool.send(0, {"do": "start a child"})
    child = message_of(pool, 0, "child")["child"]
    # the child, which has the worker's socket open, would live on for an hour: no end of it is waited for
    os.kill(ready["ready"], signal.SIGKILL)
    assert death_of(pool, 0).reason == "killed by SIGKILL"
    wait_until_gone(child)

    # a slot takes another worker, and what is sent to none is lost without a word
    pool.send(0, {"do": "echo", "text": "nobody"})
    pool.start(0)
    assert message_of(pool, 0, "ready")["ready"] != ready["ready"]
    with pytest.raises(RuntimeError, match="slot 0 already has a worker"):
        pool.start(0)


def test_a_stopped_worker_can_be_killed_and_an_error_is_told_with_its_last_line(pool: LocalPool) -> None:
    for slot_id in (0, 1):
        pool.start(slot_id)
    process_id = message_of(pool, 0, "ready")["ready"]
    os.kill(process_id, signal.SIGSTOP)
    pool.kill(0)
    pool.send(1, {"do": "fail"})
    deaths = events_until(pool, lambda events: sum(isinstance(event, WorkerDied) for event in events) == 2)
    reasons = {event.slot_id: event.reason for event in deaths if isinstance(event, WorkerDied)}
    assert reasons[0] == "killed by SIGKILL"
    assert reasons[1].startswith("ended with exit code 1: ValueError: it was told to (see ")


def test_the_worker_of_a_gang_has_the_devices_of_all_its_slots(tmp_path: Path, importable: None) -> None:
    pool = LocalPool(gpu_slots(["4", "GPU-b", "7"], num_threads=1), target=TARGET, log_directory=tmp_path)
    pool.start(1, also=(2,))
    pool.start(0)
    assert message_of(pool, 1, "ready")["gpus"] == "GPU-b,7"
    pool.kill(1)
    death_of(pool, 1)
    pool.start(1)
    assert message_of(pool, 1, "ready")["gpus"] == "GPU-b"
    pool.close()


def test_a_worker_that_cannot_begin_is_told_as_its_death(tmp_path: Path, importable: None) -> None:
    pool = LocalPool(
        gpu_slots(["0"], num_threads=1), target="tests.machine.cluster.chatting_worker:refuse", log_directory=tmp_path
    )
    pool.start(0)
    assert death_of(pool, 0).reason == f"ended with exit code 1: no such device (see {tmp_path / 'slot-0.log'})"
    pool.close()


def test_workers_die_with_the_head_even_when_they_hang(tmp_path: Path, importable: None) -> None:
    program = f"""
import time
from pathlib import Path
from cohort.machine.cluster.local import LocalPool, cpu_slots
pool = LocalPool(cpu_slots(2, num_threads=1), target={TARGET!r}, log_directory=Path({str(tmp_path)!r}))
found = set()
for slot in (0, 1): pool.start(slot)
while len(found) < 2:
    for event in pool.wait(1.0):
        found.add(event.message["ready"])
pool.send(0, {{"do": "sleep"}})
print(*found, flush=True)
time.sleep({LONG_SECONDS})
"""
    head = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    workers = [int(word) for word in head.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGSTOP)
    head.kill()
    head.wait()
    head.stdout.close()
    for worker in workers:
        wait_until_gone(worker)


def test_slots_set_devices_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    slots: tuple[LocalSlot, ...] = gpu_slots(["0", "3"], num_threads=4)
    assert [slot.slot.device for slot in slots] == ["GPU 0", "GPU 3"]
    assert slots[1].environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert slots[1].environment["OMP_NUM_THREADS"] == "4"
    # two on one machine are told apart
    devices = [slot.slot.device for slot in cpu_slots(2, num_threads=2)]
    assert devices == ["CPU worker 0 (2 threads)", "CPU worker 1 (2 threads)"]
    # what the user chose stays
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in cpu_slots(1, num_threads=2)[0].environment
