"""Block-diagonal factors as tensors: what is outside of the blocks of a rank row, and how files store the blocks.

Shapes:  r total rank · N blocks · D entries of a rank row · K input width · O output width of one linear
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.variants.block_diagonal import BlockDiagonal, BlockFactor

__all__ = ["blocks_of_columns", "expanded", "outside_blocks", "packed"]


def blocks_of_columns(layout: AdapterLayout, blocks: BlockDiagonal) -> Tensor:
    """Return, for each of the D columns, the block whose rank rows alone have entries there; -1 where all rows have."""
    block_of_D = torch.full((layout.width,), -1, dtype=torch.int16)
    for name, columns in layout.columns.items():
        factor = blocks.factor_of(name)
        if factor is not None:
            own = columns.a if factor is BlockFactor.A else columns.b
            size = (own.stop - own.start) // blocks.nblocks
            block_of_D[own] = torch.arange(blocks.nblocks, dtype=torch.int16).repeat_interleave(size)
    return block_of_D


def outside_blocks(layout: AdapterLayout, blocks: BlockDiagonal) -> Tensor:
    """Return bool [N, D]: true where the rank rows of a block are zero for good."""
    block_of_D = blocks_of_columns(layout, blocks)
    rows_N1 = torch.arange(blocks.nblocks, dtype=torch.int16)[:, None]
    return (block_of_D >= 0) & (block_of_D != rows_N1)


def packed(factor_rX: Tensor, *, nblocks: int) -> Tensor:
    """Return [r, X / N] of a block-diagonal [r, X]: in the rows of a block, its own columns."""
    r, width = factor_rX.shape
    size = width // nblocks
    rows = r // nblocks
    return torch.cat([factor_rX[b * rows : (b + 1) * rows, b * size : (b + 1) * size] for b in range(nblocks)])


def expanded(packed_rX: Tensor, *, nblocks: int) -> Tensor:
    """Return the block-diagonal [r, X] of what :func:`packed` gives."""
    whole_rX: Tensor = torch.block_diag(*packed_rX.chunk(nblocks))
    return whole_rX
