"""Plain weights: the two products, adding onto an output, and columns to spare that change neither."""

from __future__ import annotations

import pytest
import torch

from cohort.models.weight_formats.kinds.plain import FORMAT as PLAIN
from cohort.models.weight_formats.kinds.plain import FrozenLinear


def test_products_and_their_sums() -> None:
    weight, bias = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    x, dy = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    frozen = FrozenLinear(weight, bias)
    torch.testing.assert_close(frozen.forward(x), x @ weight.T + bias)
    torch.testing.assert_close(frozen.grad_input(dy), dy @ weight)
    y, dx = torch.ones_like(dy), torch.ones_like(x)
    FrozenLinear(weight).add_forward(x, y)
    FrozenLinear(weight).add_grad_input(dy, dx)
    torch.testing.assert_close(y, 1 + x @ weight.T)
    torch.testing.assert_close(dx, 1 + dy @ weight)


def test_columns_to_spare_move_the_weight_and_change_no_product() -> None:
    frozen = FrozenLinear(torch.randn(5, 3))
    x = torch.randn(4, 3)
    before = frozen.forward(x)
    frozen.reserve_columns(16)
    assert frozen.spare_NC is not None
    assert frozen.spare_NC.shape == (5, 16)
    frozen.spare_NC.fill_(torch.nan)
    torch.testing.assert_close(frozen.forward(x), before)
    frozen.spare_NC.copy_(torch.ones(5, 16))
    wide = torch.cat((x, torch.ones(4, 2)), dim=1)
    torch.testing.assert_close(frozen.forward_augmented(wide), before + 2)
    assert frozen.num_bytes == 5 * 19 * 4
    frozen.reserve_columns(0)
    assert frozen.spare_NC is None


def test_a_trained_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="must not require a gradient"):
        FrozenLinear(torch.zeros(2, 2, requires_grad=True))


@pytest.mark.parametrize("dtype", PLAIN.compute_dtypes)
def test_the_format_counts_what_it_keeps(dtype: torch.dtype) -> None:
    weight = torch.zeros(6, 7, dtype=dtype)
    assert PLAIN.weight_bytes(6, 7, dtype) == PLAIN.freeze(weight, None).num_bytes
    assert PLAIN.tensor_bytes((6, 7), dtype, is_linear=False) == weight.nbytes
