"""What a recorded decoding pass reads: the newest token of each sequence, and where its keys and values are.

One buffer keeps its place, so that a graph knows it, and takes one transfer a pass. Hundreds of sequences fill it for
every token, so what does not change from token to token is not written again.

Shapes:  T rows of a graph · P pages of a sequence at its longest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.kernels.paged_attention import PagedTiles
from cohort.kernels.staging import pinned
from cohort.serving.kv_blocks import BLOCK_ROWS

__all__ = ["DecodeInputs", "DecodeRow"]


class DecodeRow(Protocol):
    """The newest token of one sequence.

    Attributes:
        number: The sequence's.
        start: The token's position.
        blocks: The sequence's blocks, its newest position's included.
    """

    @property
    def number(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def blocks(self) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a pass reads, as parts of one buffer.

    Attributes:
        long_3T: int64: the tokens, their positions, and the rows of the pool that they are stored in.
        tiles_T4, tables_TP: As :class:`PagedTiles` has them.
    """

    long_3T: Tensor
    tiles_T4: Tensor
    tables_TP: Tensor

    @classmethod
    def within(cls, buffer: Tensor, *, size: int) -> _Parts:
        long, tiles, tables = buffer.split([6 * size, 4 * size, len(buffer) - 10 * size])
        return cls(
            long_3T=long.view(torch.int64).view(3, size),
            tiles_T4=tiles.view(size, 4),
            tables_TP=tables.view(size, -1),
        )


class _PageHomes:
    """Which row of a table each sequence's pages are in: its own while it is there, whatever others come and go."""

    def __init__(self, table_TP: NDArray[np.int32]) -> None:
        self._table_TP = table_TP
        self._homes: dict[int, int] = {}
        self._pages: list[Sequence[int]] = [()] * len(table_TP)
        self._free = list(range(len(table_TP)))

    def of(self, rows: Sequence[DecodeRow]) -> list[int]:
        """Return the row of each sequence, with its pages in it."""
        found = []
        for row in rows:
            home = self._homes.get(row.number)
            if home is None:
                if not self._free:
                    self._forget_all_but(rows)
                home = self._homes[row.number] = self._free.pop()
            # a page more every 16 tokens, where they are not all reserved
            if self._pages[home] != row.blocks:
                pages = list(row.blocks[: self._table_TP.shape[1]])
                self._table_TP[home, : len(pages)] = pages
                self._pages[home] = list(row.blocks)
            found.append(home)
        return found

    def _forget_all_but(self, rows: Sequence[DecodeRow]) -> None:
        here = {row.number for row in rows}
        for number in [number for number in self._homes if number not in here]:
            self._free.append(self._homes.pop(number))


class DecodeInputs:
    """The buffer of one graph, on the host and on the device.

    Attributes:
        long_3T: On the device, int64: the tokens, their positions, and the rows of the pool that they are stored in.
    """

    def __init__(self, size: int, *, pages: int, device: torch.device, is_pinned: bool) -> None:
        host = torch.zeros(size * (3 * 2 + 4 + pages), dtype=torch.int32)
        self._host, self._is_pinned = pinned(host) if is_pinned else host, is_pinned
        self._staged = self._host.to(device, copy=True)
        self._filled, self._read = (_Parts.within(buffer, size=size) for buffer in (self._host, self._staged))
        self._homes = _PageHomes(self._filled.tables_TP.numpy())
        self.long_3T = self._read.long_3T

    def tiles(self, *, most_keys: int) -> PagedTiles:
        """Return the tiles of attention, which read what the last :meth:`fill` sent."""
        return PagedTiles(tiles_N4=self._read.tiles_T4, tables_SP=self._read.tables_TP, queries=1, most_keys=most_keys)

    def fill(self, rows: Sequence[DecodeRow]) -> None:
        """Send the rows of the next pass, ordered after the replays so far."""
        if self._is_pinned:
            torch.cuda.current_stream().synchronize()  # the last transfer still reads the pinned memory
        count, filled = len(rows), self._filled
        long, tiles, tables = filled.long_3T.numpy(), filled.tiles_T4.numpy(), filled.tables_TP.numpy()
        long[:, count:], tiles[count:] = 0, 0
        positions, homes = np.array([row.start for row in rows], dtype=np.int64), self._homes.of(rows)
        pages, places = np.divmod(positions, BLOCK_ROWS)
        long[0, :count] = [row.tokens[-1] for row in rows]
        long[1, :count] = positions
        long[2, :count] = tables[homes, pages].astype(np.int64) * BLOCK_ROWS + places
        tiles[:count, 0], tiles[:count, 1] = np.arange(count), 1
        tiles[:count, 2], tiles[:count, 3] = positions, homes
        self._staged.copy_(self._host, non_blocking=True)
