"""Attention in fixed sizes gives what attention in buckets gives, forward and backward, whatever the padding."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import ShapeError
from cohort.models.attention import PackedAttention
from cohort.models.config import AttentionRule
from cohort.models.fixed_attention import FixedAttention, fixed_attention_rows

OFFSETS = (0, 5, 6, 6, 17)
NUM_ROWS = 24


def fixed(num_sequences: int = 6, length: int = 16) -> FixedAttention:
    rows, places = fixed_attention_rows(OFFSETS, num_rows=NUM_ROWS, num_sequences=num_sequences, length=length)
    return FixedAttention(
        num_sequences=num_sequences, length=length, rows_P=torch.from_numpy(rows), places_T=torch.from_numpy(places)
    )


@pytest.mark.parametrize("window", [None, 3])
def test_equals_attention_in_buckets(window: int | None) -> None:
    shapes = [(NUM_ROWS, 4, 8), (NUM_ROWS, 2, 8), (NUM_ROWS, 2, 8)]
    qkv = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    do = torch.randn(NUM_ROWS, 4, 8, dtype=torch.float64)
    do[OFFSETS[-1] :] = 0  # rows of no sequence bring no gradient
    used = slice(0, OFFSETS[-1])
    expected = PackedAttention(OFFSETS).attend(0, *qkv, rule=AttentionRule(window=window))
    found = fixed().attend(0, *qkv, rule=AttentionRule(window=window))
    torch.testing.assert_close(found[used], expected[used], rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(o, qkv, do, retain_graph=True) for o in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert not ours[OFFSETS[-1] :].any()


def test_a_poisoned_sequence_stays_alone() -> None:
    qkv = [torch.randn(NUM_ROWS, 2, 4) for _ in range(3)]
    for rows in qkv:
        rows[5:6] = float("nan")
        rows.requires_grad_()
    found = fixed().attend(0, *qkv, rule=AttentionRule())
    others = [row for row in range(NUM_ROWS) if row != 5]
    assert found[others].isfinite().all()
    do = torch.zeros_like(found)
    do[: OFFSETS[-1]] = 1.0
    for gradient in torch.autograd.grad(found, qkv, do):
        assert gradient[others].isfinite().all()


@pytest.mark.parametrize(("num_sequences", "length", "num_rows"), [(3, 16, 24), (6, 8, 24), (6, 16, 17)])
def test_what_does_not_fit_is_refused(num_sequences: int, length: int, num_rows: int) -> None:
    with pytest.raises(ShapeError):
        fixed_attention_rows(OFFSETS, num_rows=num_rows, num_sequences=num_sequences, length=length)
