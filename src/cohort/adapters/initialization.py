"""Fresh LoRA weights, drawn per trial and module at the true rank, so that no neighbour or slot can change them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cohort.adapters.block_diagonal import BlockDiagonal, BlockFactor
from cohort.adapters.block_factors import expanded
from cohort.adapters.layout import AdapterLayout
from cohort.core.seeds import derive_seed

__all__ = ["initial_weights"]


def initial_weights(
    layout: AdapterLayout,
    *,
    r: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    blocks: BlockDiagonal | None = None,
) -> Tensor:
    """Return the rank rows [r, D] of a new adapter, on the host: A Kaiming-uniform with a = sqrt(5) as in PEFT, B zero.

    A is drawn in float32 from a generator seeded by (trial seed, module name), so a trial starts alike in every pack.
    A block-diagonal A is drawn as the paper builds it, one LoRA adapter on each block of ``in / N`` inputs: within
    ``sqrt(N / in)``. PEFT draws it within ``sqrt(6 N / in)``.
    """
    rows_rD = torch.zeros(r, layout.width, dtype=dtype)
    for name, columns in layout.columns.items():
        in_features = layout.linears[name][0]
        in_blocks = blocks is not None and blocks.factor_of(name) is BlockFactor.A
        nblocks = blocks.nblocks if blocks is not None and in_blocks else 1
        bound = 1.0 / math.sqrt(in_features // nblocks)
        generator = torch.Generator().manual_seed(derive_seed(seed, "lora_A", name))
        drawn_rK = torch.empty(r, in_features // nblocks).uniform_(-bound, bound, generator=generator)
        rows_rD[:, columns.a] = (expanded(drawn_rK, nblocks=nblocks) if in_blocks else drawn_rK).to(dtype)
    return rows_rD
