"""Codes of the activation and of its gradient are those of a pass of their own, over rows of any number of pieces."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import CodeRoom, Fp8Rows, empty_rows, quantise_rows
from cohort.kernels.swiglu import swiglu
from cohort.kernels.swiglu.triton import PIECE, swiglu_backward
from tests.kernels.closeness import low_precision

# half of the fused product's width: below a piece, two whole ones, an odd end
SHAPES = [(1, 8), (3, 344), (2, 2 * PIECE), (2, PIECE + 10), (0, 16)]


def assert_same_codes(found: Fp8Rows, expected: Fp8Rows) -> None:
    assert torch.equal(found.scales_T, expected.scales_T)
    assert torch.equal(found.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))


@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_codes_are_those_of_a_pass_of_their_own(triton_device: str, num_rows: int, width: int) -> None:
    """Compared by the same backend: Triton's interpreter rounds to e4m3 wrongly."""
    buffer = torch.randn(num_rows, 2 * width + 16, device=triton_device).to(low_precision(triton_device))
    gate_up = buffer[:, : 2 * width]  # rows of a wider buffer
    gate_up[:1, width:] = 0
    codes = empty_rows(gate_up, width=width)
    plain = swiglu(gate_up, backend=Backend.TRITON)
    coded = swiglu(gate_up, codes=codes, backend=Backend.TRITON)
    assert torch.equal(coded, plain)
    assert_same_codes(codes, quantise_rows(plain, backend=Backend.TRITON))

    dy = torch.randn(num_rows, width, device=triton_device).to(gate_up.dtype)
    factors = torch.rand(2 * width, device=triton_device) + 0.5
    room = CodeRoom(factors_N=factors, rows=empty_rows(gate_up, width=2 * width))
    plain = swiglu_backward(dy, gate_up_TF=gate_up)
    coded = swiglu_backward(dy, gate_up_TF=gate_up, room=room)
    assert torch.equal(coded, plain)
    assert_same_codes(room.rows, quantise_rows(plain, factors_K=factors, backend=Backend.TRITON))


def test_a_row_that_is_not_finite_harms_no_other(triton_device: str) -> None:
    gate_up = torch.ones(3, 32, device=triton_device)
    gate_up[1, 3] = float("nan")
    codes = empty_rows(gate_up, width=16)
    # a CPU's default: Triton's interpreter has no NaN in e4m3
    swiglu(gate_up, codes=codes)
    values = codes.codes_TK.float() * codes.scales_T[:, None]
    assert values[1].isnan().any()
    assert torch.equal(values[0], values[2])
    assert values[0].isfinite().all()


def test_codes_of_another_shape_or_beside_a_term_are_refused() -> None:
    gate_up = torch.zeros(3, 8)
    with pytest.raises(ShapeError, match=r"codes are \(3, 5\); the result is \(3, 4\)"):
        swiglu(gate_up, codes=empty_rows(gate_up, width=5))
    with pytest.raises(ShapeError, match="codes with a term"):
        swiglu(gate_up, codes=empty_rows(gate_up, width=4), term_TF=torch.zeros(3, 8))
