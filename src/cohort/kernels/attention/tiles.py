"""Device tables of attention tiles: which rows one program works on, cut from each sequence's own first row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

__all__ = ["AttentionTiles"]


class AttentionTiles:
    """The tiles of one stream layout on one device, shared by all layers of a pass.

    A table is int32 ``[tiles, 3]``: first row of the sequence, the row after its last, first row of the tile. Tiles
    of long sequences come first, so that the programs that run last are short. Which tiles a sequence is cut into
    depends on its own length alone.
    """

    def __init__(self, sequence_offsets: Sequence[int], *, device: torch.device | str) -> None:
        """Take row offsets ``(0, ..., end)`` of the sequences."""
        self.sequence_offsets = tuple(sequence_offsets)
        self._device = torch.device(device)
        self._tables: dict[int, Tensor] = {}

    @property
    def num_used(self) -> int:
        """Rows that belong to some sequence."""
        return self.sequence_offsets[-1]

    def table(self, rows: int) -> Tensor:
        """Return the table of tiles of ``rows`` rows each, the last of a sequence shorter."""
        if rows not in self._tables:
            entries = [
                (start, stop, first)
                for start, stop in sorted(pairwise(self.sequence_offsets), key=lambda span: span[0] - span[1])
                for first in range(start, stop, rows)
            ]
            host = torch.from_numpy(np.array(entries, dtype=np.int32).reshape(-1, 3))
            if self._device.type == "cuda":
                host = host.pin_memory()
            self._tables[rows] = host.to(self._device, non_blocking=True)
        return self._tables[rows]
