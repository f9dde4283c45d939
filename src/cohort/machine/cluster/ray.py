"""Workers on a Ray cluster: one placement group and one actor per slot, the same worker process inside it.

An actor holds its slot's resources on its node and keeps a :class:`~cohort.machine.cluster.local.LocalPool` of one
worker, so a worker lives, speaks and dies as it does on one machine; when the actor or its node is lost, the worker
goes with it. A lost node takes its slots away, a node that joins brings new ones.

A node that is cut off lives on, and so would its worker, which still writes to the run directory. Therefore an actor
that cannot reach the cluster's head ends itself, and the pool reports slots as lost only once their actors did so.

Run directories must lie on storage that every node sees at the same path.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.machine.cluster.local import LocalPool, LocalSlot, cpu_slots
from cohort.machine.cluster.worker_pool import (
    Message,
    PoolEvent,
    Slot,
    SlotsGained,
    SlotsLost,
    WorkerDied,
)

__all__ = ["RayPool", "connect", "gpu_names"]

# an actor does one thing at a time, so a message to it waits up to this long
_ACTOR_WAIT_SECONDS = 0.2
# asking Ray for its nodes is a remote call, which every turn of the dispatcher would wait for
_SECONDS_BETWEEN_LOOKS = 2.0
# an actor that has not reached the head for so long ends itself, with its worker
_CUT_OFF_SECONDS = 12.0
_CONNECT_SECONDS = 3.0
_SECONDS_BETWEEN_CONNECTS = 2.0
# no worker of an actor that was last heard of so long ago lives: the above, its last try, and some more
_GONE_SECONDS = 20.0


def connect(address: str) -> None:
    """Connect this process to a Ray cluster.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
    """
    ray = _import_ray()
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        raise InputError(
            Problem(
                where=f"--ray {address}",
                found=f"no cluster ({str(error).strip().splitlines()[0]})",
                allowed="auto, HOST:PORT or ray://HOST:PORT of a running cluster",
                hint="Start one with `ray start --head`, or leave --ray out to work on this machine.",
            )
        ) from None


def gpu_names() -> tuple[str, ...]:
    """Return the names of the connected cluster's GPUs, one per kind; ``GPU`` where Ray knows no name."""
    resources = _import_ray().cluster_resources()
    names = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    return tuple(names) or (("GPU",) if resources.get("GPU") else ())


def _import_ray() -> Any:
    try:
        # optional, and slow to import: only a queue with --ray pays for it
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise InputError(
            Problem(
                where="--ray",
                found="Ray is not installed",
                allowed="the optional package ray",
                hint="Install it with pip install 'cohort-lora[ray]', or leave --ray out to work on this machine.",
            )
        ) from None


class _Executor:
    """The actor: a pool of one worker on its node."""

    def __init__(self, local: LocalSlot, target: str, log_directory: str) -> None:
        self._slot_id = local.slot.slot_id
        self._pool = LocalPool([local], target=target, log_directory=Path(log_directory))
        head = _import_ray().get_runtime_context().gcs_address
        threading.Thread(target=_end_when_cut_off, args=[head], daemon=True).start()

    def start(self) -> None:
        self._pool.start(self._slot_id)

    def send(self, message: Message) -> None:
        self._pool.send(self._slot_id, message)

    def wait(self) -> list[PoolEvent]:
        return self._pool.wait(_ACTOR_WAIT_SECONDS)


def _end_when_cut_off(head: str) -> None:
    """End this process, and its worker with it, once ``head`` (``HOST:PORT``) was out of reach for too long."""
    host, _, port = head.rpartition(":")
    reached = time.monotonic()
    while time.monotonic() - reached < _CUT_OFF_SECONDS:
        time.sleep(_SECONDS_BETWEEN_CONNECTS)
        began = time.monotonic()
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            reached = began
    os._exit(1)


@dataclass(frozen=True, kw_only=True)
class _RaySlot:
    """A slot, the node it is on, and its actor once a worker was started, with its own and others' devices."""

    slot: Slot
    node_id: str
    group: Any = None
    actor: Any = None
    num_devices: int = 1


class RayPool:
    """Slots of the Ray cluster that this process is connected to (``ray.init``)."""

    can_grow = True

    def __init__(
        self,
        *,
        target: str,
        log_directory: Path,
        on_gpu: bool,
        cpus_per_worker: int = 1,
        most_slots: int | None = None,
    ) -> None:
        """Take the cluster's slots; no worker begins yet.

        Args:
            target: ``module:function`` that a worker calls with its channel.
            log_directory: Where workers log, on their own nodes.
            on_gpu: One slot per GPU; else one per ``cpus_per_worker`` CPUs.
            cpus_per_worker: CPUs that Ray reserves for a worker; its threads on the CPU.
            most_slots: Slots to use at most; None: all.
        """
        self._ray = _import_ray()
        self._target, self._log_directory = target, log_directory
        self._on_gpu, self._cpus, self._most_slots = on_gpu, cpus_per_worker, most_slots
        self._ray_slots: dict[int, _RaySlot] = {}
        self._nodes: set[str] = set()
        self._alive: frozenset[str] = frozenset()
        self._waiting: dict[Any, int] = {}
        # when each slot's actor last answered, and the slots whose actors may live on without an answer, with the error
        self._heard: dict[int, float] = {}
        self._unsure: dict[int, str] = {}
        self._pending: list[PoolEvent] = []
        self._next_slot = 0
        self._looked = float("-inf")
        self._look_at_nodes()
        # the first slots are those of slots(); only later ones are events
        self._pending = []

    def slots(self) -> tuple[Slot, ...]:
        return tuple(ray_slot.slot for ray_slot in self._ray_slots.values())

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        """Begin a worker in a slot that has none; Ray places its actor, with all of its devices, on the slot's node."""
        ray_slot = self._ray_slots.get(slot_id)
        if ray_slot is None:
            # its node was lost in the meantime; that event takes the slot away
            return
        count = 1 + len(also)
        if ray_slot.actor is not None and ray_slot.num_devices != count:
            # an actor keeps the devices it was made with
            self._forget(slot_id)
            ray_slot = self._ray_slots[slot_id]
        if ray_slot.actor is None:
            # actors that wait in the other slots for workers hold what this one needs
            for other in also:
                if other in self._ray_slots:
                    self._forget(other)
            resources = {"CPU": float(count * self._cpus), **({"GPU": float(count)} if self._on_gpu else {})}
            groups = importlib.import_module("ray.util.placement_group")
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            group = groups.placement_group([resources], strategy="STRICT_PACK", _soft_target_node_id=ray_slot.node_id)
            executor = self._ray.remote(_Executor).options(
                num_cpus=count * self._cpus,
                num_gpus=count if self._on_gpu else 0,
                # the dispatcher restarts workers itself, and counts their deaths
                max_restarts=0,
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(placement_group=group),
            )
            actor = executor.remote(self._local_slot(ray_slot.slot), self._target, str(self._log_directory))
            ray_slot = self._ray_slots[slot_id] = _RaySlot(
                slot=ray_slot.slot, node_id=ray_slot.node_id, group=group, actor=actor, num_devices=count
            )
            self._waiting[actor.wait.remote()] = slot_id
            self._heard[slot_id] = time.monotonic()
        ray_slot.actor.start.remote()

    def send(self, slot_id: int, message: Message) -> None:
        ray_slot = self._ray_slots.get(slot_id)
        if ray_slot is not None and ray_slot.actor is not None:
            ray_slot.actor.send.remote(dict(message))

    def kill(self, slot_id: int) -> None:
        ray_slot = self._ray_slots.get(slot_id)
        if ray_slot is not None and ray_slot.actor is not None:
            self._ray.kill(ray_slot.actor)

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        if not self._waiting:
            time.sleep(timeout_seconds)
        ready: Sequence[Any] = []
        if self._waiting:
            ready, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=timeout_seconds)
        for reference in ready:
            self._collect(reference, self._waiting.pop(reference))
        if time.monotonic() - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self._look_at_nodes()
        events, self._pending = self._pending, []
        return events

    def close(self) -> None:
        """End all workers and give their resources back; the connection to Ray stays."""
        for slot_id in list(self._ray_slots):
            self._forget(slot_id)
        self._ray_slots, self._waiting = {}, {}

    def _collect(self, reference: Any, slot_id: int) -> None:
        if slot_id not in self._ray_slots:
            return
        try:
            self._pending += self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            # a lost node takes its slots away: that is another event than the death of a worker
            self._look_at_nodes()
            if slot_id in self._ray_slots:
                is_dead = isinstance(error, self._ray.exceptions.ActorDiedError)
                is_here = self._ray_slots[slot_id].node_id in self._alive
                self._forget(slot_id)
                self._unsure[slot_id] = reason
                if is_dead and is_here:
                    self._report_death(slot_id)
            return
        self._heard[slot_id] = time.monotonic()
        self._waiting[self._ray_slots[slot_id].actor.wait.remote()] = slot_id

    def _report_death(self, slot_id: int) -> None:
        self._heard.pop(slot_id, None)
        reason = f"its actor is gone: {self._unsure.pop(slot_id)}"
        self._pending.append(WorkerDied(slot_id=slot_id, reason=reason))

    def _may_live(self, slot_id: int) -> bool:
        """Return whether a worker of the slot may still be running on a node that cannot be reached."""
        return time.monotonic() - self._heard.get(slot_id, float("-inf")) < _GONE_SECONDS

    def _forget(self, slot_id: int) -> None:
        """End a slot's actor and free its resources; the slot stays."""
        ray_slot = self._ray_slots[slot_id]
        if ray_slot.actor is not None:
            self._ray.kill(ray_slot.actor)
            importlib.import_module("ray.util").remove_placement_group(ray_slot.group)
        self._ray_slots[slot_id] = _RaySlot(slot=ray_slot.slot, node_id=ray_slot.node_id)
        self._waiting = {reference: other for reference, other in self._waiting.items() if other != slot_id}

    def _look_at_nodes(self) -> None:
        """Take in new nodes, and drop nodes that are gone."""
        self._looked = time.monotonic()
        alive = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        self._alive = frozenset(alive)
        left = set()
        for node_id in self._nodes - set(alive):
            lost = tuple(slot_id for slot_id, ray_slot in self._ray_slots.items() if ray_slot.node_id == node_id)
            if any(map(self._may_live, lost)):
                left.add(node_id)
                continue
            for slot_id in lost:
                self._forget(slot_id)
                del self._ray_slots[slot_id]
                self._unsure.pop(slot_id, None)
            if lost:
                self._pending.append(SlotsLost(slot_ids=lost, reason=f"node {node_id[:8]} is gone"))
        for slot_id in list(self._unsure):
            if self._ray_slots[slot_id].node_id in alive and not self._may_live(slot_id):
                self._report_death(slot_id)
        # known nodes too: with --gpus N, a node that was lost leaves room for slots of another
        for node_id in sorted(alive):
            gained = self._slots_of(alive[node_id])
            self._ray_slots |= {slot.slot_id: _RaySlot(slot=slot, node_id=node_id) for slot in gained}
            if gained:
                self._pending.append(SlotsGained(slots=gained))
        self._nodes = set(alive) | left

    def _slots_of(self, node: dict[str, Any]) -> tuple[Slot, ...]:
        """Return new slots for the resources of a node that have none yet, as far as they are wanted."""
        resources, name = node["Resources"], node["NodeID"][:8]
        before = sum(ray_slot.node_id == node["NodeID"] for ray_slot in self._ray_slots.values())
        count = int(resources.get("CPU", 0) // self._cpus)
        if self._on_gpu:
            count = min(count, int(resources.get("GPU", 0)))
        if self._most_slots is not None:
            count = min(count, before + self._most_slots - len(self._ray_slots))
        slots = []
        for index in range(before, count):
            device = f"GPU {index}" if self._on_gpu else "CPU"
            place = f"{device} of {node['NodeManagerHostname']}"
            slots.append(Slot(slot_id=self._next_slot, node=name, device=place, is_cpu=not self._on_gpu))
            self._next_slot += 1
        return tuple(slots)

    def _local_slot(self, slot: Slot) -> LocalSlot:
        if self._on_gpu:
            # Ray lets the actor see its own GPU only; its worker inherits that
            return LocalSlot(slot=slot)
        # the thread count of a worker on this machine, unless the user set one
        return LocalSlot(slot=slot, environment=cpu_slots(1, num_threads=self._cpus)[0].environment)
