"""Keeps the gradients of block-diagonal adapters inside their blocks.

Products of dense rank rows give gradients outside of the blocks too. With zeros for them the weights, which are zero
there from the start, and the moments stay zero, and the norm is that of the blocks.

Shapes:  r total rank · N blocks · D entries of a rank row
"""

from __future__ import annotations

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks

__all__ = ["BlockGradients"]


class BlockGradients:
    """The masks of one layout, each made when it is first needed: the adapters of a sweep have few structures."""

    def __init__(self, layout: AdapterLayout) -> None:
        self._layout = layout
        self._outside_ND: dict[BlockDiagonal, Tensor] = {}

    def confine(self, grads_rD: Tensor, blocks: BlockDiagonal) -> None:
        """Put zeros into the gradients of an adapter's rank rows [r, D] outside of its blocks, in place."""
        outside_ND = self._outside_ND.get(blocks)
        if outside_ND is None:
            outside_ND = outside_blocks(self._layout, blocks).to(grads_rD.device)
            self._outside_ND[blocks] = outside_ND
        num_rows, width = grads_rD.shape
        # filled, not multiplied: 0 x NaN is NaN
        grads_rD.view(blocks.nblocks, num_rows // blocks.nblocks, width).masked_fill_(outside_ND[:, None], 0)
