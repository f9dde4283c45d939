"""Gradients outside of blocks become zeros; those inside stay as they are."""

from __future__ import annotations

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks
from cohort.adapters.variants.block_gradients import BlockGradients

LAYOUT = AdapterLayout({"l.q_proj": (3, 4), "l.o_proj": (4, 3)})


def test_each_structure_has_its_own_blocks() -> None:
    confined = BlockGradients(LAYOUT)
    for blocks in (BlockDiagonal(nblocks=2), BlockDiagonal(nblocks=4), BlockDiagonal(nblocks=2)):
        grads_rD = torch.full((4, LAYOUT.width), float("nan"))
        confined.confine(grads_rD, blocks)
        outside = outside_blocks(LAYOUT, blocks).repeat_interleave(4 // blocks.nblocks, dim=0)
        assert not grads_rD[outside].any()
        assert grads_rD[~outside].isnan().all()
