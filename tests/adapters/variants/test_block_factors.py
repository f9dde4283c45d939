"""Block-diagonal factors: the mask of a rank row, and the stored form there and back again."""

from __future__ import annotations

import pytest
import torch
from peft.tuners.lora.variants import BlockDiagonalLinear

from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.block_factors import expanded, outside_blocks, packed

LAYOUT = AdapterLayout({"l.q_proj": (6, 8), "l.o_proj": (8, 6), "l.other": (3, 5)})
BLOCKS = BlockDiagonal(nblocks=2, match_strict=False)
SPEC = AdapterSpec(r=8, lora_alpha=8, use_bdlora=BlockDiagonal(nblocks=4))


@pytest.mark.parametrize(("r", "width", "nblocks"), [(4, 6, 2), (3, 9, 3), (8, 8, 8), (2, 2, 1)])
def test_the_stored_form_is_pefts(r: int, width: int, nblocks: int) -> None:
    stored = torch.randn(r, width // nblocks)
    whole = expanded(stored, nblocks=nblocks)
    assert torch.equal(packed(whole, nblocks=nblocks), stored)
    module = BlockDiagonalLinear(width, r, nblocks=nblocks)
    with torch.no_grad():
        module.weight.copy_(stored)
    x = torch.randn(5, width)
    torch.testing.assert_close(module(x), x @ whole.T)


def test_the_mask_leaves_each_block_its_columns_and_dense_factors_all() -> None:
    outside = outside_blocks(LAYOUT, BLOCKS)
    q, o, other = (LAYOUT.columns[name] for name in LAYOUT.linears)
    for part in (q.a, o.b, other.a, other.b):
        assert not outside[:, part].any()
    assert outside[:, q.b].tolist() == [[False] * 4 + [True] * 4, [True] * 4 + [False] * 4]
    assert outside[:, o.a].tolist() == [[False] * 4 + [True] * 4, [True] * 4 + [False] * 4]


def test_fresh_weights_are_those_of_adapters_on_each_block() -> None:
    layout = AdapterLayout({"l.o_proj": (4096, 16), "l.q_proj": (64, 16)})
    rows = initial_weights(layout, SPEC, seed=1)
    outside = outside_blocks(layout, BlockDiagonal(nblocks=4)).repeat_interleave(2, dim=0)
    assert not rows[outside].any()
    o, q = layout.columns["l.o_proj"].a, layout.columns["l.q_proj"].a
    # the paper's construction: LoRA on in / N inputs
    assert 0.95 * (4 / 4096) ** 0.5 < rows[:, o].abs().max() <= (4 / 4096) ** 0.5
    assert torch.equal(rows[:, q], initial_weights(layout, AdapterSpec(r=8, lora_alpha=8), seed=1)[:, q])
