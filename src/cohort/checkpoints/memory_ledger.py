"""The ledger of memory: bytes that kept states take of each device, counted as they come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.ranks.divided_states.divided_rows import divided_rows_of
from cohort.training.trial import TrialState

__all__ = ["Room", "MemoryLedger"]


@dataclass(frozen=True)
class Room:
    """Where a state is and what it takes there.

    Attributes:
        parts: The bytes of its tensors by address, or by key where the ranks of a group have them: of one GPU, the
            fullest, or of the host.
        file_bytes: What its file takes.
    """

    device: torch.device
    parts: dict[Hashable, int]
    file_bytes: int

    @classmethod
    def of(cls, value: TrialState | Tensor) -> Room:
        """Return the room of a state, or of weights alone."""
        tensors = tuple(value.adapter.tensors.values()) if isinstance(value, TrialState) else (value,)
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        if divided := tuple(divided_rows_of(value).values()):
            keyed: dict[Hashable, int] = {rows.key: rows.placement.num_bytes for rows in divided}
            return cls(divided[0].placement.device, keyed, sum(sizes))
        parts: dict[Hashable, int] = {tensor.data_ptr(): size for tensor, size in zip(tensors, sizes, strict=True)}
        return cls(tensors[0].device, parts, sum(sizes))

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())


class MemoryLedger:
    """Bytes by device. Weights that a state shares with a best checkpoint count once."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, int] = defaultdict(int)
        # by device and address: how many name it
        self._holders: dict[tuple[torch.device, Hashable], int] = defaultdict(int)
        self._rooms: dict[torch.device, int] = defaultdict(int)

    @property
    def devices(self) -> set[torch.device]:
        """Those that something is on."""
        return {device for device, count in self._rooms.items() if count}

    def on(self, device: torch.device) -> int:
        """Return the bytes on a device."""
        return self._sums[device]

    def add(self, room: Room) -> None:
        """Count what has come."""
        self._rooms[room.device] += 1
        for address, num_bytes in room.parts.items():
            self._holders[room.device, address] += 1
            if self._holders[room.device, address] == 1:
                self._sums[room.device] += num_bytes

    def remove(self, room: Room) -> None:
        """Stop counting what was added."""
        self._rooms[room.device] -= 1
        for address, num_bytes in room.parts.items():
            key = room.device, address
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._sums[room.device] -= num_bytes
