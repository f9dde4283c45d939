"""Keys and values of all live sequences in one pool of blocks: no copy when a sequence comes, grows or leaves.

Shapes:  R rows of the pool · G key-value heads · E head width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.kernels.paged_attention import store_pages
from cohort.models.config import DecoderConfig

__all__ = ["BLOCK_ROWS", "NULL_BLOCK", "KvBlocks", "StoredBlocks", "blocks_for", "rows_of"]

BLOCK_ROWS = 16
NULL_BLOCK = 0
"""A block of zeros that belongs to no sequence: what stands where a sequence has no block yet."""


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_ROWS)


def rows_of(blocks: Sequence[int]) -> NDArray[np.int64]:
    """Return the pool rows of ``blocks``, in order."""
    return (np.asarray(blocks, dtype=np.int64)[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class StoredBlocks:
    """Copies of blocks in host memory, each [layers, rows, G, E]."""

    keys: Tensor
    values: Tensor


class KvBlocks:
    """The pool. Who owns which block is for :class:`~cohort.serving.block_manager.BlockManager` to say."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        layers: Sequence[int] | None = None,
    ) -> None:
        """Allocate ``num_blocks`` blocks and the one of zeros, block 0.

        Args:
            layers: Consecutive layers whose keys and values are kept, those of a stage; None for all.
        """
        layers = range(config.num_layers) if layers is None else layers
        self._first_layer = layers[0]
        shape = (len(layers), (num_blocks + 1) * BLOCK_ROWS, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.num_blocks = num_blocks

    @staticmethod
    def block_bytes(config: DecoderConfig, *, dtype: torch.dtype) -> int:
        """Return the bytes of one block, keys and values of all layers."""
        return 2 * config.num_layers * BLOCK_ROWS * config.kv_width * dtype.itemsize

    def zero(self, blocks: Sequence[int]) -> None:
        """Zero blocks that a sequence is about to own.

        Masked keys still enter a product with weight 0, and 0 times what a diverged adapter left here may be NaN.
        """
        if blocks:
            rows = self._rows(blocks)
            self.keys.index_fill_(1, rows, 0.0)
            self.values.index_fill_(1, rows, 0.0)

    def store(self, blocks: Sequence[int]) -> StoredBlocks:
        """Copy blocks to the host."""
        rows = self._rows(blocks)
        return StoredBlocks(keys=self.keys.index_select(1, rows).cpu(), values=self.values.index_select(1, rows).cpu())

    def restore(self, stored: StoredBlocks, blocks: Sequence[int]) -> None:
        """Copy what :meth:`store` gave into ``blocks``."""
        rows = self._rows(blocks)
        self.keys.index_copy_(1, rows, stored.keys.to(rows.device))
        self.values.index_copy_(1, rows, stored.values.to(rows.device))

    def write(self, layer_index: int, *, rows: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> None:
        """Store one row of keys and values at each of ``rows``."""
        keys, values = self.of_layer(layer_index)
        store_pages(k_TGE, v_TGE, keys_RGE=keys, values_RGE=values, rows_T=rows)

    def read(self, layer_index: int, *, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at ``rows``, each [len(rows), G, E]."""
        keys, values = self.of_layer(layer_index)
        return keys.index_select(0, rows), values.index_select(0, rows)

    def of_layer(self, layer_index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of one layer of the model, each [R, G, E]."""
        place = layer_index - self._first_layer
        return self.keys[place], self.values[place]

    def _rows(self, blocks: Sequence[int]) -> Tensor:
        return torch.from_numpy(rows_of(blocks)).to(self.keys.device)
