"""What a frozen product may offer beyond its two products, asked of the plain format and of one that offers nothing."""

from __future__ import annotations

import pytest
import torch

from cohort.kernels.packed_linear.frozen_product import can_accumulate, can_augment, can_reserve, plain_weight
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.dense_head import DenseHead


def test_a_format_that_offers_nothing_is_asked_for_nothing() -> None:
    frozen = DenseHead(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert not can_accumulate(frozen)
    assert not can_augment(frozen)
    assert not can_reserve(frozen)
    assert plain_weight(frozen) is None


@pytest.mark.parametrize(("dtype", "readable"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)])
def test_kernels_read_16_bit_weights_alone(dtype: torch.dtype, readable: bool) -> None:
    frozen = FrozenLinear(torch.zeros(3, 4, dtype=dtype))
    assert (plain_weight(frozen) is not None) == readable


def test_a_bias_keeps_kernels_and_accumulation_away() -> None:
    frozen = FrozenLinear(torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))
    assert not can_accumulate(frozen)
    assert plain_weight(frozen) is None


def test_columns_to_spare_are_there_once_they_are_reserved() -> None:
    frozen = FrozenLinear(torch.zeros(3, 4))
    assert can_reserve(frozen)
    assert not can_augment(frozen)
    frozen.reserve_columns(16)
    assert can_augment(frozen)
