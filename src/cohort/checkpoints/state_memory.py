"""Trials' states in memory: on GPUs while there is room, then on the host.

States leave a GPU in threads, before the room that they may take there is full, so that a trial that is parked waits
for no copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.checkpoints.memory_ledger import MemoryLedger, Room
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.ranks.divided_states.divided_rows import Departure, divided_rows_of
from cohort.training.transfers.host_copies import HostCopies
from cohort.training.trial import TrialState

__all__ = ["HOST", "StateMemory"]

HOST = torch.device("cpu")
# states begin to leave a GPU when this share of their room is left
SHARE_FOR_COPIES = 1 / 8


@dataclass(frozen=True)
class _Leaving:
    """A state on its way to the host; it takes room on both sides."""

    value: TrialState | Tensor
    copies: Future[dict[str, Tensor]] | Departure

    def arrived(self) -> TrialState | Tensor:
        """Wait for the copy and return it."""
        copies = self.copies.result()
        if isinstance(self.value, Tensor):
            return copies["weights"]
        moments = {name: copies[name] for name in self.value.adapter.moments}
        return replace(self.value, adapter=replace(self.value.adapter, weights=copies["weights"], moments=moments))


class StateMemory:
    """States and best checkpoints by name, in the order in which they came: the oldest leaves first."""

    def __init__(self, *, device_budget_bytes: int) -> None:
        """Let states take ``device_budget_bytes`` of each GPU."""
        self._kept: dict[StoredState, TrialState | Tensor | _Leaving] = {}
        self._rooms: dict[StoredState, Room] = {}
        # counted as states come and go: asked for at every one of them
        self._taken, self._staying, self._num_coming = MemoryLedger(), MemoryLedger(), 0
        self._device_budget_bytes = device_budget_bytes
        self._copies = HostCopies()

    @property
    def keeps_on_device(self) -> bool:
        return self._device_budget_bytes > 0

    @property
    def has_room_on_devices(self) -> bool:
        return all(self.num_bytes(gpu) < self._device_budget_bytes for gpu in self._gpus)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __iter__(self) -> Iterator[StoredState]:
        return iter(list(self._kept))

    def put(self, name: StoredState, value: TrialState | Tensor) -> None:
        """Keep ``value``; one that is kept under its name already keeps its place in the order."""
        self._keep(name, value)

    def get(self, name: StoredState) -> TrialState | Tensor | None:
        """Return what is kept under ``name``, wherever it is; what is still on its way stays on its GPU instead."""
        kept = self._kept.get(name)
        if isinstance(kept, _Leaving):
            is_there = kept.copies.done() and kept.copies.exception() is None
            kept = self._keep(name, kept.arrived() if is_there else kept.value)
        return kept

    def pop(self, name: StoredState) -> TrialState | Tensor | None:
        """Return what is kept under ``name``, and forget it."""
        kept = self.get(name)
        self.forget(name)
        return kept

    def forget(self, name: StoredState) -> None:
        """Forget what is kept under ``name``; a copy that is on its way ends unseen."""
        self._uncount(name)
        self._kept.pop(name, None)

    def _keep(self, name: StoredState, value: TrialState | Tensor) -> TrialState | Tensor:
        self._set(name, value)
        return value

    def _set(self, name: StoredState, kept: TrialState | Tensor | _Leaving) -> None:
        self._uncount(name)
        self._kept[name] = kept
        room = self._rooms[name] = Room.of(kept.value if isinstance(kept, _Leaving) else kept)
        self._taken.add(room)
        if isinstance(kept, _Leaving):
            self._num_coming += room.num_bytes
        else:
            self._staying.add(room)

    def _uncount(self, name: StoredState) -> None:
        room = self._rooms.pop(name, None)
        if room is None:
            return
        self._taken.remove(room)
        if isinstance(self._kept[name], _Leaving):
            self._num_coming -= room.num_bytes
        else:
            self._staying.remove(room)

    def oldest_on_host(self) -> StoredState:
        """Return what leaves the host first: a spare state, else the oldest."""
        return _first_to_leave([name for name in self._kept if self._will_be_on(name) == HOST])

    def file_bytes(self, name: StoredState) -> int:
        """Return the bytes that a file of what is kept under ``name`` takes."""
        return self._rooms[name].file_bytes

    def num_bytes(self, device: torch.device) -> int:
        """Return the bytes that states take on a device, or will once their copies are there."""
        return self._taken.on(device) + (self._num_coming if device == HOST else 0)

    def _will_be_on(self, name: StoredState) -> torch.device:
        """Return where a state is; one that is on its way counts as being there."""
        return HOST if isinstance(self._kept[name], _Leaving) else self._rooms[name].device

    def _is_leaving(self, name: StoredState, gpu: torch.device) -> bool:
        return isinstance(self._kept[name], _Leaving) and self._rooms[name].device == gpu

    def make_room_on_devices(self) -> None:
        """Bring what is kept on each GPU within the budget: spare states are dropped, then the oldest leave."""
        self._take_arrived()
        for gpu in self._gpus:
            start_above = self._device_budget_bytes - int(self._device_budget_bytes * SHARE_FOR_COPIES)
            while self._staying.on(gpu) > start_above:
                self._leave(_first_to_leave([name for name in self._kept if self._will_be_on(name) == gpu]))
            while self.num_bytes(gpu) > self._device_budget_bytes:
                # in the order in which they left, so the first arrives first
                self._arrive(next(name for name in self._kept if self._is_leaving(name, gpu)))

    def limit_devices(self, num_bytes: int) -> None:
        """Let states take ``num_bytes`` of each GPU from now on; none after a device ran out of memory."""
        if self._device_budget_bytes in (0, num_bytes):
            return
        self._device_budget_bytes = num_bytes
        self.make_room_on_devices()

    def leave_devices(self) -> bool:
        """Move everything to the host, now and in future; return whether there was anything to move."""
        # states to come go to the host as well: the device has run out of memory once
        self._device_budget_bytes = 0
        there = [name for name in self._kept if self._rooms[name].device != HOST]
        for name in there:
            if not isinstance(self._kept[name], _Leaving):
                self._leave(name)
        for name in there:
            self._arrive(name)
        return bool(there)

    def _leave(self, name: StoredState) -> None:
        value = self._kept[name]
        assert not isinstance(value, _Leaving), "a state leaves once"
        if name.kind is StoredStateKind.SPARE:
            self.forget(name)
            return
        tensors = value.adapter.tensors if isinstance(value, TrialState) else {"weights": value}
        divided = divided_rows_of(value)
        self._set(name, _Leaving(value, Departure(divided) if divided else self._copies.start(tensors)))

    def _take_arrived(self) -> None:
        """Let go of what is on the host by now: until then its memory on the GPU is not free."""
        for name, kept in list(self._kept.items()):
            if isinstance(kept, _Leaving) and kept.copies.done():
                self._arrive(name)

    def _arrive(self, name: StoredState) -> None:
        """Wait until a state that is on its way is on the host.

        Raises:
            RuntimeError: the copy failed, as where the host has no memory left; the state stays on its GPU.
        """
        kept = self._kept.get(name)
        if isinstance(kept, _Leaving):
            # first, for a copy that never comes
            self._keep(name, kept.value)
            self._keep(name, kept.arrived())

    @property
    def _gpus(self) -> set[torch.device]:
        """The GPUs that something is kept on."""
        return self._taken.devices - {HOST}


def _first_to_leave(names: list[StoredState]) -> StoredState:
    return next((name for name in names if name.kind is StoredStateKind.SPARE), names[0])
