"""Outputs times gains: the form with fewer passes over memory gives what the other one does, also in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.adapters.variants.magnitude_scaling import ColumnsOf, Multiplied, Piece, Scaled, Scaling
from cohort.models.weight_formats.kinds.plain import FrozenLinear

T, N = 24, 10


def pieces_of(sinks: Tensor, *, covers: bool) -> list[Piece]:
    """Two slots of 10 and 14 rows (or 10 and 8), whose outputs are two siblings."""
    torch.manual_seed(1)
    found = []
    for place, rows in enumerate((slice(0, 10), slice(10, T if covers else 18))):
        for columns in (slice(0, 6), slice(6, N)):
            width = columns.stop - columns.start
            scaling = Scaling(
                gain_N=torch.rand(width) + 0.5,
                norm_N=torch.rand(width) + 1,
                bias_N=torch.zeros(width),
                sink_N=sinks[place, columns],
            )
            found.append(Piece(rows=rows, columns=columns, scaling=scaling, source=rows, source_columns=columns))
    return found


@pytest.mark.parametrize("covers", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_forms_agree(dtype: torch.dtype, *, covers: bool) -> None:
    torch.manual_seed(0)
    y, dy = torch.randn(T, N).to(dtype), torch.randn(T, N).to(dtype)
    found = []
    for form in (Scaled, Multiplied):
        sinks, leaf = torch.zeros(2, N), y.clone().requires_grad_()
        output = form.apply(leaf, pieces_of(sinks, covers=covers))
        output.backward(dy)
        assert leaf.grad is not None
        assert output.dtype == leaf.grad.dtype == dtype
        found.append((output.detach(), leaf.grad, sinks))
    for own, expected in zip(found[1][:2], found[0][:2], strict=True):
        # one rounding of the same product
        torch.testing.assert_close(own, expected)
    # sums of products that are rounded to 8 bits first
    assert (found[1][2] - found[0][2]).norm() <= (1e-6 if dtype is torch.float32 else 4e-3) * found[0][2].norm()


def test_columns_of_a_product() -> None:
    weight, x, dy = torch.randn(9, 5), torch.randn(3, 5), torch.randn(3, 4)
    assert not ColumnsOf.can_be_had(FrozenLinear(weight, torch.zeros(9)))
    own = ColumnsOf(FrozenLinear(weight), slice(2, 6))
    assert (own.in_features, own.out_features, own.dtype, own.num_bytes) == (5, 4, torch.float32, 80)
    torch.testing.assert_close(own.forward(x), x @ weight[2:6].T)
    torch.testing.assert_close(own.grad_input(dy), dy @ weight[2:6])
