"""Attention in the tiles of decoding: what attention of whole sequences gives, with its gradients."""

from __future__ import annotations

import pytest
import torch

from cohort.models.attention import PackedAttention
from cohort.models.config import AttentionRule
from cohort.models.tiled_attention import TiledAttention

LENGTHS = (1, 15, 0, 16, 17, 40, 64)


@pytest.mark.parametrize(
    "rule", [AttentionRule(), AttentionRule(window=7), AttentionRule(window=7, scale=0.7, cap=1.5)]
)
def test_outputs_and_gradients_are_those_of_packed_attention(rule: AttentionRule) -> None:
    offsets = (0, *torch.tensor(LENGTHS).cumsum(0).tolist())
    rows = [torch.randn(offsets[-1] + 16, heads, 8, dtype=torch.float64).requires_grad_() for heads in (4, 2, 2)]
    given = torch.randn(offsets[-1] + 16, 4, 8, dtype=torch.float64)
    found, expected = (
        [o, *torch.autograd.grad(o, rows, given)]
        for o in (
            TiledAttention(offsets).attend(0, *rows, rule=rule),
            PackedAttention(offsets).attend(0, *rows, rule=rule),
        )
    )
    for one, other in zip(found, expected, strict=True):
        # float64, some tens of terms a sum
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not found[0][offsets[-1] :].any()


def test_a_sequence_has_its_bits_among_others() -> None:
    q, k, v, given = (torch.randn(37, heads, 16) for heads in (4, 2, 2, 4))

    def own(before: int, after: int) -> list[torch.Tensor]:
        around = [
            torch.cat([torch.randn(before, *x.shape[1:]), x, torch.randn(after, *x.shape[1:])])
            for x in (q, k, v, given)
        ]
        rows = [x.requires_grad_() for x in around[:3]]
        o = TiledAttention((0, before, before + 37, before + 37 + after)).attend(0, *rows, rule=AttentionRule())
        return [x[before : before + 37] for x in (o.detach(), *torch.autograd.grad(o, rows, around[3]))]

    alone = own(0, 0)
    for one, other in zip(alone, own(50, 19), strict=True):
        assert torch.equal(one, other)
