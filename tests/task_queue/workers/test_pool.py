"""Which slots a queue gets, and what each is taken to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.machine.cluster.worker_pool import Slot
from cohort.machine.machine import choose_machine
from cohort.task_queue.workers.pool import PoolRequest, open_pool


def test_workers_on_this_machine_share_its_memory(tmp_path: Path) -> None:
    one, alone = open_pool(PoolRequest(workers=1), tmp_path)
    four, shared = open_pool(PoolRequest(workers=4), tmp_path)
    assert (len(one.slots()), len(four.slots())) == (1, 4)
    # free memory moves between the two looks
    assert shared.memory_bytes == pytest.approx(alone.memory_bytes / 4, rel=0.2)
    assert not shared.is_gpu
    for opened in (one, four):
        opened.close()


def test_a_request_is_kept_with_the_queue_and_read_back() -> None:
    request = PoolRequest(gpus=2, ray="auto")
    assert PoolRequest(**request.to_json()) == request


class FakeRay:
    """A Ray cluster of two nodes."""

    can_grow = True

    def __init__(self, **options: Any) -> None:
        self.options = options
        count = 3 if options["most_slots"] is None else options["most_slots"]
        self._slots = tuple(Slot(slot_id=i, node=f"node{i % 2}", device="CPU") for i in range(count))

    def slots(self) -> tuple[Slot, ...]:
        return self._slots


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the cluster's GPUs, for the test to fill."""
    names: list[str] = []
    monkeypatch.setattr("cohort.machine.cluster.ray.connect", lambda address: None)
    monkeypatch.setattr("cohort.machine.cluster.ray.gpu_names", lambda: tuple(names))
    monkeypatch.setattr("cohort.machine.cluster.ray.RayPool", FakeRay)
    return names


def test_a_cluster_of_several_gpus_is_planned_by_the_smallest(tmp_path: Path, names: list[str]) -> None:
    names += ["NVIDIA H200", "a GPU that is not described"]
    found, hardware = open_pool(PoolRequest(ray="auto"), tmp_path)
    assert isinstance(found, FakeRay)
    assert found.options["on_gpu"] is True
    assert (hardware.name, hardware.memory_bytes) == ("a GPU that is not described", 24e9)


def test_nodes_without_a_gpu_are_taken_to_be_like_this_machine(tmp_path: Path, names: list[str]) -> None:
    _, hardware = open_pool(PoolRequest(ray="auto", workers=3), tmp_path)
    machine = choose_machine(0, where="num_gpus")
    # two of the three workers share a node
    assert hardware.memory_bytes == pytest.approx(machine.memory_bytes / 2, rel=0.2)
    assert hardware.name.endswith("1 thread")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (PoolRequest(ray="auto", gpus=1), "a cluster without a GPU"),
        (PoolRequest(ray="auto", gpus=1, workers=1), "one of the two"),
        (PoolRequest(workers=0), "1 or more"),
    ],
)
def test_what_no_cluster_has_is_refused(tmp_path: Path, names: list[str], request_: PoolRequest, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_pool(request_, tmp_path)
