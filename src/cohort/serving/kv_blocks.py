"""Keys and values of all live sequences in one pool of blocks: no copy when a sequence comes, grows or leaves.

Shapes:  R rows of the pool · G key-value heads · E head width
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.models.config import DecoderConfig

__all__ = ["BLOCK_ROWS", "KvBlocks", "blocks_for"]

BLOCK_ROWS = 16


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_ROWS)


class KvBlocks:
    """A pool of key and value rows, handed out in blocks of 16 positions."""

    def __init__(self, config: DecoderConfig, *, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, num_blocks * BLOCK_ROWS, config.num_kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._free = list(range(num_blocks - 1, -1, -1))
        self.num_blocks = num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_blocks: int) -> NDArray[np.int64]:
        """Return the pool rows of ``num_blocks`` blocks, all zero, in the order of the positions they will hold."""
        blocks = np.array([self._free.pop() for _ in range(num_blocks)], dtype=np.int64)
        rows = (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).reshape(-1)
        # masked keys still enter a product with weight 0, and 0 times what a diverged adapter left here may be NaN
        where = torch.from_numpy(rows).to(self._keys.device)
        self._keys.index_fill_(1, where, 0.0)
        self._values.index_fill_(1, where, 0.0)
        return rows

    def give_back(self, rows: NDArray[np.int64]) -> None:
        self._free.extend(int(row) // BLOCK_ROWS for row in rows[::BLOCK_ROWS])

    def write(self, layer_index: int, *, rows: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> None:
        """Store one row of keys and values at each of ``rows``."""
        self._keys[layer_index].index_copy_(0, rows, k_TGE)
        self._values[layer_index].index_copy_(0, rows, v_TGE)

    def read(self, layer_index: int, *, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at ``rows``, each [len(rows), G, E]."""
        return self._keys[layer_index].index_select(0, rows), self._values[layer_index].index_select(0, rows)
