"""Rows of a frozen weight are read exactly, from a plain weight and through products alike."""

from __future__ import annotations

import torch

from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.models.weight_formats.kinds.plain import FrozenLinear


def test_rows_are_exact_with_and_without_a_bias() -> None:
    weight = torch.randn(2100, 5)
    for bias in (None, torch.randn(2100)):
        found = dense_rows(FrozenLinear(weight, bias), slice(3, 2090), device=torch.device("cpu"))
        assert torch.equal(found, weight[3:2090])
        found.zero_()
    assert weight.all(), "the frozen weight itself is never handed out"
