"""Sibling linears over one frozen product: each adapted part at its own columns, the others frozen."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.linear import LinearPart, LoraContext, PackedLinear
from cohort.core.errors import ShapeError
from cohort.kernels.packed_linear import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

PARTS = (LinearPart(name="q", out_features=5), LinearPart(name="v", out_features=3))


def context(num_rows: int, **factors: LoraPart) -> LoraContext:
    slots = SlotTable(row_starts=(0,), ranks=(2,), scales=(2.0,), dropouts=(0.0,))
    segments = SegmentTable.from_samples([num_rows - 4], slots=[0], num_slots=1, num_rows=num_rows)
    return LoraContext(factors=factors, slots=slots, segments=segments)


def factors_of(width: int) -> LoraPart:
    return LoraPart(a_RK=torch.randn(2, 4, dtype=torch.float64), b_RN=torch.randn(2, width, dtype=torch.float64))


def test_a_part_adds_its_term_to_its_own_columns_and_rows() -> None:
    weight, x = torch.randn(8, 4, dtype=torch.float64), torch.randn(36, 4, dtype=torch.float64)
    linear, v = PackedLinear(FrozenLinear(weight), parts=PARTS), factors_of(3)
    expected = x @ weight.T
    torch.testing.assert_close(linear(x, None), expected)
    expected[:32, 5:] += 2.0 * (x[:32] @ v.a_RK.T) @ v.b_RN
    torch.testing.assert_close(linear(x, context(36, v=v)), expected)
    assert [part.column_start for part in linear.adapted(context(36, v=v))] == [5]


def test_linears_that_the_adapters_leave_out_run_frozen() -> None:
    weight, x = torch.randn(8, 4, dtype=torch.float64), torch.randn(36, 4, dtype=torch.float64)
    linear = PackedLinear(FrozenLinear(weight), parts=PARTS)
    assert linear.adapted(context(36, other=factors_of(3))) == ()
    assert torch.equal(linear(x, context(36, other=factors_of(3))), linear(x, None))
    assert linear.input_room(x, None) is None


def test_parts_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeError, match="parts are 8 wide together, the frozen linear 9"):
        PackedLinear(FrozenLinear(torch.zeros(9, 4)), parts=PARTS)
