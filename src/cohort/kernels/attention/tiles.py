"""Device tables of attention tiles: which rows one program works on, cut from each sequence's own first row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.staging import pinned

__all__ = ["TILE_ROWS", "AttentionTiles", "RecordedTiles"]

# rows of a tile in every kernel that reads a table
TILE_ROWS = 64


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
            host = torch.from_numpy(_entries(self.sequence_offsets, rows=rows))
            if self._device.type == "cuda":
                host = pinned(host)
            self._tables[rows] = host.to(self._device, non_blocking=True)
        return self._tables[rows]


class RecordedTiles(AttentionTiles):
    """Tiles that a CUDA graph reads: their table keeps its place and size while the sequences of the stream change.

    Every row of the stream belongs to a sequence, the filler at its end to short ones of its own, so that no row is
    left to be zeroed. Programs beyond the last tile find an entry of no rows and end.
    """

    def __init__(self, table: Tensor, *, num_rows: int) -> None:
        """Read ``table``, int32 [:meth:`capacity`, 3] on the device, filled from :meth:`entries` before each replay."""
        super().__init__((0, num_rows), device=table.device)
        self._tables[TILE_ROWS] = table

    @staticmethod
    def capacity(*, num_rows: int, num_sequences: int) -> int:
        """Return the most tiles of a stream with at most ``num_sequences`` sequences and filler."""
        # every sequence has at most one tile that is not full; filler is cut into full ones and one more
        return num_rows // TILE_ROWS + num_sequences + 1

    @staticmethod
    def entries(sequence_offsets: Sequence[int], *, num_rows: int, capacity: int) -> NDArray[np.int32]:
        """Return the table of sequences at ``(0, ..., end)`` in a stream of ``num_rows`` rows, int32 [capacity, 3].

        Raises:
            ShapeError: they need more tiles, or end behind the stream.
        """
        used = sequence_offsets[-1]
        filler = [*range(used, num_rows, TILE_ROWS), num_rows]
        found = _entries((*sequence_offsets[:-1], *filler), rows=TILE_ROWS)
        if used > num_rows or len(found) > capacity:
            raise ShapeError(
                f"{len(sequence_offsets) - 1} sequences that end at row {used} need {len(found)} tiles; there are "
                f"{capacity} for {num_rows} rows"
            )
        table = np.zeros((capacity, 3), dtype=np.int32)
        table[: len(found)] = found
        return table


def _entries(offsets: Sequence[int], *, rows: int) -> NDArray[np.int32]:
    entries = [
        (start, stop, first)
        for start, stop in sorted(pairwise(offsets), key=lambda span: span[0] - span[1])
        for first in range(start, stop, rows)
    ]
    return np.array(entries, dtype=np.int32).reshape(-1, 3)
