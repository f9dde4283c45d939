"""The ledger of memory: bytes that kept states take of each device, counted as they come and go."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.training.trial import TrialState

__all__ = ["Room", "MemoryLedger"]


@dataclass(frozen=True)
class Room:
    """Where a state is and what it takes there.

    Attributes:
        parts: The bytes of its tensors by address.
    """

    device: torch.device
    parts: dict[int, int]

    @classmethod
    def of(cls, value: TrialState | Tensor) -> Room:
        """Return the room of a state, or of weights alone."""
        tensors = tuple(value.adapter.tensors.values()) if isinstance(value, TrialState) else (value,)
        parts = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
        return cls(tensors[0].device, parts)

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())


class MemoryLedger:
    """Bytes by device. Weights that a state shares with a best checkpoint count once."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, int] = defaultdict(int)
        # by device and address: how many name it
        self._holders: dict[tuple[torch.device, int], int] = defaultdict(int)
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
