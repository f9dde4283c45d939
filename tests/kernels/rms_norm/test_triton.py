"""How the norm's kernels cut a matrix into programs."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import empty_rows, quantise_rows
from cohort.kernels.rms_norm import add_rms_norm, fork_rms_norm, rms_norm
from cohort.kernels.rms_norm.triton import row_tile


@pytest.mark.parametrize("width", [1, 5, 128, 3072, 4096, 5120, 16384, 40_000])
def test_a_row_lies_in_one_program(width: int) -> None:
    rows, columns, num_warps = row_tile(width)
    assert width <= columns < 2 * width + 1
    assert rows == 1 or rows * columns <= 4096
    assert num_warps in (1, 2, 4, 8, 16)


@pytest.mark.parametrize("kind", ["alone", "adding", "forking"])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 8), (9, 96), (3, 1030), (2, 4096), (0, 16)])
def test_codes_are_those_of_a_pass_of_their_own(triton_device: str, kind: str, num_rows: int, width: int) -> None:
    """Triton's interpreter rounds to e4m3 wrongly: there the norm is +-1 times a weight of e4m3 values."""
    if triton_device == "cpu":
        x = torch.where(torch.rand(num_rows, width) < 0.5, -4.0, 4.0)
        weight = torch.randint(-8, 9, (width,)).float() * 32
        weight[0] = 448.0
    else:
        x = torch.randn(num_rows, width, dtype=torch.bfloat16, device=triton_device)
        x[:1] = 0
        weight = torch.randn(width, dtype=torch.bfloat16, device=triton_device)
    eps = 1e-9 if triton_device == "cpu" else 1e-5  # 16 + 1e-9 is 16
    outputs = []
    for codes in (None, empty_rows(x, width=width)):
        if kind == "adding":
            half = x * 0.5
            added = add_rms_norm(half, residual_TD=half, weight_D=weight, eps=eps, codes=codes, backend=Backend.TRITON)
            outputs.append(added[0])
        elif kind == "forking":
            outputs.append(fork_rms_norm(x, weight_D=weight, eps=eps, codes=codes, backend=Backend.TRITON)[0])
        else:
            outputs.append(rms_norm(x, weight_D=weight, eps=eps, codes=codes, backend=Backend.TRITON))
    assert codes is not None
    expected = quantise_rows(outputs[1], backend=Backend.TRITON)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(codes.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))
    assert torch.equal(codes.scales_T, expected.scales_T)


def test_codes_of_another_shape_are_refused() -> None:
    x = torch.zeros(3, 8)
    with pytest.raises(ShapeError, match=r"codes are \(3, 4\)"):
        rms_norm(x, weight_D=torch.ones(8), eps=1e-5, codes=empty_rows(x, width=4))
