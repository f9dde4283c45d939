"""Where a queue's workers run, on this machine or on a Ray cluster, and the hardware of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.machine.cluster.local import LocalPool
from cohort.machine.cluster.worker_pool import WorkerPool
from cohort.machine.devices import hardware_of
from cohort.machine.local_slots import choose_slots, hardware_of_slots, refuse_counts
from cohort.machine.machine import choose_machine
from cohort.scheduling.cost.hardware import Hardware, known_gpu

__all__ = ["WORKER_TARGET", "PoolRequest", "most_slots_of_node", "open_pool"]

WORKER_TARGET = "cohort.task_queue.workers.worker:serve"


@dataclass(frozen=True, kw_only=True)
class PoolRequest:
    """The devices a user asks for.

    Attributes:
        gpus: GPUs to use at most; None: all.
        workers: Workers on the CPU instead.
        ray: Address of a Ray cluster; None: this machine.
    """

    gpus: int | None = None
    workers: int | None = None
    ray: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def open_pool(request: PoolRequest, directory: Path) -> tuple[WorkerPool, Hardware]:
    """Return a pool without workers and the hardware of each of its slots.

    Args:
        directory: The queue's directory; workers log to ``workers`` in it.

    Raises:
        InputError: there is no such place, or no slot in it.
        RunStateError: a GPU cannot be used.
    """
    logs = directory / "workers"
    if request.ray is not None:
        return _open_ray(request.ray, request, logs)
    slots = choose_slots(gpus=request.gpus, workers=request.workers)
    # nothing is started yet: a queue whose tasks have all ended needs no worker
    return LocalPool(slots, target=WORKER_TARGET, log_directory=logs), hardware_of_slots(slots)


def most_slots_of_node(pool: WorkerPool) -> int:
    """Return how many slots a task can have at the same time: those of the largest machine."""
    return max(Counter(slot.node for slot in pool.slots()).values(), default=0)


def _open_ray(address: str, request: PoolRequest, logs: Path) -> tuple[WorkerPool, Hardware]:
    from cohort.machine.cluster.ray import RayPool, connect, gpu_names

    refuse_counts(gpus=request.gpus, workers=request.workers)
    connect(address)
    names = gpu_names()
    on_gpu = request.workers is None and bool(names)
    most = request.workers if request.workers is not None else request.gpus
    pool = RayPool(target=WORKER_TARGET, log_directory=logs.absolute(), on_gpu=on_gpu, most_slots=most)
    if not pool.slots() or (request.gpus is not None and not on_gpu):
        raise InputError(
            Problem(
                where=f"--ray {address}",
                found="a cluster without a GPU" if request.gpus is not None else "a cluster without a free slot",
                allowed="nodes with GPUs, or with CPUs and --workers N",
                hint="Add nodes, or write --workers N for the CPU.",
            )
        )
    if on_gpu:
        return pool, _least_of(names)
    # Ray tells cores and not speeds, so nodes are taken to be like this machine, shared by the workers of one node
    machine = choose_machine(0, where="num_gpus")
    per_node = most_slots_of_node(pool)
    # RayPool reserves one CPU for a worker, which computes with one thread
    return pool, hardware_of(replace(machine, threads=1, memory_bytes=machine.memory_bytes // per_node))


def _least_of(names: Sequence[str]) -> Hardware:
    # all slots are planned alike, so by the one with the least memory: a task that fits it fits them all
    return min(
        # an unknown GPU counts as a middling one until a step was measured on it
        (
            known_gpu(name) or Hardware(name=name, memory_bytes=24e9, flops_per_second=1e14, bytes_per_second=8e11)
            for name in names
        ),
        key=lambda hardware: hardware.memory_bytes,
    )
