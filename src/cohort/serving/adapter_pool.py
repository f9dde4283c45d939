"""Adapters on their way from disk to host memory to slots of the device, and back: the most recently used stay.

The thread of the engine asks for slots and never waits: reading files happens in a thread of its own, copies to a GPU
on a stream of their own. Other threads add, replace and remove adapters at any time.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.peft_files.peft_format import PeftAdapter, rank_rows_from_peft
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.adapter_registry import (
    AdapterHandle,
    AdapterRegistry,
    AdapterStatus,
    AdapterVersion,
    load_version,
    require_finite,
    require_shared_modules,
)
from cohort.serving.arriving_rows import ArrivingRows
from cohort.serving.host_adapters import HostAdapters
from cohort.serving.ranks import OneProcess, ServingRanks
from cohort.serving.scheduler import Admission

__all__ = ["AdapterPool"]


@dataclass
class _Resident:
    version: AdapterVersion
    slot: int
    users: int = 0


class AdapterPool:
    """Satisfies :class:`~cohort.serving.engine.EngineAdapters` for adapters that come and go."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        settings: AdapterPoolSettings | None = None,
        reserved_names: tuple[str, ...] = (),
        check: Callable[[Path], None] = lambda _: None,
        layout: AdapterLayout | None = None,
        ranks: ServingRanks | None = None,
    ) -> None:
        """Allocate the slots.

        Args:
            reserved_names: Names of the base model.
            check: Raises an InputError for a directory whose adapter belongs to another base model.
            layout: The linears of the whole model, where ``decoder`` is a shard of it.
            ranks: The other ranks of a divided model.
        """
        self.settings = settings or AdapterPoolSettings()
        self._layout, self._check = layout or AdapterLayout(decoder.linears), check
        self._ranks = ranks or OneProcess()
        self.num_slots = self.settings.max_loras
        self._bank = AdapterBank(
            self._ranks.local_layout(self._layout),
            num_slots=self.num_slots,
            num_rank_rows=self.settings.num_rank_rows,
            device=decoder.device,
            dtype=decoder.dtype,
            trains=False,
        )
        self._registry = AdapterRegistry(reserved_names)
        # the least recently used first
        self._residents: OrderedDict[Hashable, _Resident] = OrderedDict()
        self._arriving: dict[Hashable, ArrivingRows] = {}
        self._starved: set[AdapterHandle] = set()
        self._failures: list[tuple[Hashable, str]] = []
        self._lock = threading.RLock()
        self._changed = threading.Event()
        on_gpu = decoder.device.type == "cuda"
        self._copies = torch.cuda.Stream(decoder.device) if on_gpu else None
        self._host = HostAdapters(
            layout=self._layout,
            most_adapters=self.settings.max_cpu_loras,
            most_rank=self.settings.max_lora_rank,
            ranks=self._ranks,
            dtype=decoder.dtype,
            is_pinned=on_gpu,
            lock=self._lock,
            changed=self._changed,
        )
        self.num_loads = 0

    # ---- names: any thread

    def handle(self, name: str) -> AdapterHandle:
        """Return what a request for ``name`` holds.

        Raises:
            UnknownAdapterError: there is no such adapter.
        """
        with self._lock:
            return self._registry.find(name)

    def statuses(self) -> list[AdapterStatus]:
        with self._lock:
            found = []
            for name in self._registry.names:
                version = self._registry.find(name).version
                residence = "disk" if version.kept is None else "host"
                if version.key in self._residents or (version.kept is not None and not version.kept.is_on_host):
                    residence = "device"
                found.append(
                    AdapterStatus(
                        name=name, path=version.path, r=version.spec.r, version=version.key[1], residence=residence
                    )
                )
            return found

    def load(self, name: str, path: Path, *, replaces: bool = False) -> AdapterStatus:
        """Read an adapter directory and give it a name; with ``replaces`` in place of what has the name.

        Requests that run end on the version they began with.

        Raises:
            InputError: the adapter cannot be used; nothing has changed.
            NameTakenError: the name is another adapter's.
        """
        with self._lock:
            self._registry.require_free(name, replaces=replaces)
        self._check(path)
        spec, rows_rD, digest = load_version(path, layout=self._layout, most_rank=self.settings.max_lora_rank)
        return self._put(name, spec=spec, rows_rD=rows_rD, path=path, digest=digest, replaces=replaces)

    def publish(self, name: str, adapter: PeftAdapter, *, replaces: bool = True) -> None:
        """Give weights in memory a name: tensors under PEFT's names. They stay in host memory.

        Raises:
            InputError, NameTakenError: as :meth:`load`.
        """
        require_shared_modules(adapter, where=name)
        self.publish_rows(name, adapter.spec, rank_rows_from_peft(self._layout, adapter), replaces=replaces)

    def publish_rows(self, name: str, spec: AdapterSpec, rows_rD: Tensor, *, replaces: bool = True) -> None:
        """Give rank rows a name; the caller does not change them any more. They stay on the device, or on the host.

        Rows on the device enter a slot by a copy there; see :meth:`move_to_host`.

        Raises:
            InputError, NameTakenError: as :meth:`load`.
        """
        require_finite(rows_rD, where=name)
        if spec.num_factor_rows > self.settings.max_lora_rank:
            raise InputError(
                Problem(
                    where=name,
                    found=f"rank {spec.num_factor_rows}",
                    allowed=f"a rank of at most {self.settings.max_lora_rank}",
                    hint=f"Raise max_lora_rank to {spec.num_factor_rows}.",
                )
            )
        self._put(name, spec=spec, rows_rD=rows_rD, path=None, digest=b"", replaces=replaces)

    def _put(
        self, name: str, *, spec: AdapterSpec, rows_rD: Tensor, path: Path | None, digest: bytes, replaces: bool
    ) -> AdapterStatus:
        # before the lock is taken: other ranks may be a while to reach
        kept = self._host.kept(spec, rows_rD)
        with self._lock:
            # another thread may have taken the name meanwhile
            self._registry.require_free(name, replaces=replaces)
            handle, replaced = self._registry.put(name, spec=spec, kept=kept, path=path, digest=digest)
            if replaced is not None:
                self._retire(replaced)
            self._host.keep(handle.version, arriving=self._arriving)
            self._changed.set()
            version = handle.version
            return AdapterStatus(name=name, path=path, r=spec.r, version=version.key[1], residence="host")

    def move_to_host(self, name: str) -> Tensor:
        """Move the rank rows of an adapter from the device to host memory, if they are there; return them.

        Raises:
            UnknownAdapterError: there is no such adapter.
        """
        with self._lock:
            version = self._registry.find(name).version
            kept = version.kept
        assert kept is not None, "weights in memory are never dropped"
        if kept.is_on_host:
            return kept.rows_rD
        moved = self._host.kept(kept.spec, kept.rows_rD.cpu())
        with self._lock:
            version.kept = moved
        return moved.rows_rD

    def unload(self, name: str) -> None:
        """Take a name away. Requests that have it are answered.

        Raises:
            UnknownAdapterError: there is no such adapter.
        """
        with self._lock:
            self._retire(self._registry.remove(name))

    def close(self) -> None:
        """End the thread that reads."""
        self._host.close()

    def wait_changed(self, timeout_seconds: float) -> None:
        """Wait until an adapter may have become ready, at most ``timeout_seconds``."""
        # the end of a copy to a GPU sets no event
        self._changed.wait(0.001 if self._arriving else timeout_seconds)
        self._changed.clear()

    # ---- slots: the engine's thread

    def acquire(self, adapter: Hashable) -> Admission | None:
        """Return a slot that stays until it is released; None while the weights are on their way or no slot is free."""
        if adapter is None:
            return Admission(slot=None, version=None)
        assert isinstance(adapter, AdapterHandle), "requests hold handles"
        with self._lock:
            self._starved.discard(adapter)
            self._drop_retired()
            version = adapter.version
            resident = self._residents.get(version.key) or self._bring(adapter, version)
            if resident is None:
                return None
            resident.users += 1
            self._residents.move_to_end(version.key)
            return Admission(slot=resident.slot, version=version.key)

    def waits_for_slot(self, adapter: Hashable) -> bool:
        with self._lock:
            return adapter in self._starved

    def release(self, adapter: Hashable, version: Hashable) -> None:
        if adapter is None:
            return
        with self._lock:
            resident = self._residents[version]
            resident.users -= 1
            if resident.users == 0 and resident.version.is_retired:
                self._drop(resident)

    def take_failures(self) -> list[tuple[Hashable, str]]:
        with self._lock:
            failures, self._failures = self._failures, []
            return failures + self._host.take_failures()

    def context(self, segments: SegmentTable) -> LoraContext | None:
        """Return what the linears need; None for a pass of the frozen model alone."""
        return self._bank.context(segments) if segments.num_adapter_rows else None

    # ---- with the lock held

    def _bring(self, handle: AdapterHandle, version: AdapterVersion) -> _Resident | None:
        """Move an adapter one step nearer to a slot; return it once it is in one."""
        kept = version.kept
        if kept is None:
            self._host.read_again(handle, version, arriving=self._arriving)
            return None
        self._host.use(version)
        if not self._make_room(kept.spec):
            self._starved.add(handle)
            return None
        rows_rD = kept.rows_rD
        if self._copies is not None and kept.is_on_host:
            arrival = self._arriving.get(version.key)
            if arrival is None:
                self._arriving[version.key] = ArrivingRows(rows_rD, like=self._bank.weights_RD, stream=self._copies)
                self._ranks.fetch(kept.token)
                return None
            if not arrival.is_there:
                return None
            rows_rD = self._arriving.pop(version.key).rows_rD
        try:
            slot = self._bank.insert(kept.spec, AdapterState(weights=rows_rD))
        except torch.OutOfMemoryError:
            # those that wait for it fail, and it may be asked for again; all others go on
            problem = "the device ran out of memory while it was loaded; others are served, try again later"
            self._failures.append((handle, f"adapter {handle.name!r}: {problem}"))
            return None
        self._ranks.insert(kept.token)
        self.num_loads += 1
        resident = self._residents[version.key] = _Resident(version, slot)
        return resident

    def _make_room(self, spec: AdapterSpec) -> bool:
        """Take slots from adapters without requests until one more fits; return False if it does not."""
        for resident in tuple(self._residents.values()):
            if self._bank.fits(spec):
                return True
            if resident.users == 0:
                self._drop(resident)
        return self._bank.fits(spec)

    def _drop(self, resident: _Resident) -> None:
        self._bank.remove(resident.slot)
        self._ranks.remove(resident.slot)
        del self._residents[resident.version.key]
        self._changed.set()

    def _retire(self, version: AdapterVersion) -> None:
        """Let a version go with its last request; the engine's thread takes it out of its slot."""
        self._host.forget(version)
        self._arriving.pop(version.key, None)

    def _drop_retired(self) -> None:
        for resident in tuple(self._residents.values()):
            if resident.users == 0 and resident.version.is_retired:
                self._drop(resident)
