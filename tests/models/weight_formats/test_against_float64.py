"""Both products of every format against float64 products of the weight as it was: what a format's rounding may cost.

Each bound is of one entry, from what the format rounds: half a step of a weight, and with fp8 half a step of a row,
each times what it is multiplied by.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.models.weight_formats import WEIGHT_FORMATS

FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)
# e4m3: three bits after the point, and steps of 2^-9 of the scale below 2^-6 of it
HALF_STEP, HALF_LEAST = 2**-4, 2**-10
# between the two outermost values of NormalFloat, -1 and -0.696, and what the scales lose to their own 8 bits
WIDEST_HALF_GAP, SCALE_ERROR = 0.152, 0.01


def weight_errors(weight_NK: Tensor, name: str) -> Tensor:
    """Return how far each entry of a rounded weight may be from the weight."""
    largest_N1 = weight_NK.abs().amax(dim=1, keepdim=True)
    if name == "int8":
        return (largest_N1 * 0.5 / 127).expand_as(weight_NK)
    if name == "fp8":
        return torch.maximum(weight_NK.abs() * HALF_STEP, largest_N1 / 448 * HALF_LEAST)
    flat = torch.nn.functional.pad(weight_NK.flatten(), (0, -weight_NK.numel() % 64)).unflatten(0, (-1, 64))
    sizes = flat.abs().amax(dim=1, keepdim=True)
    # codes of scales have steps by the largest scale of 256
    scale_errors = sizes * SCALE_ERROR + sizes.max() * SCALE_ERROR
    errors: Tensor = (sizes * WIDEST_HALF_GAP + scale_errors).expand_as(flat).flatten()
    return errors[: weight_NK.numel()].view_as(weight_NK)


def row_errors(x_TK: Tensor, name: str) -> Tensor:
    if name != "fp8":
        return torch.zeros_like(x_TK)
    return torch.maximum(x_TK.abs() * HALF_STEP, x_TK.abs().amax(dim=1, keepdim=True) / 448 * HALF_LEAST)


def assert_near(found: Tensor, x_TK: Tensor, weight_KN: Tensor, *, errors_KN: Tensor, name: str) -> None:
    x_TK, weight_KN, errors_KN = x_TK.double(), weight_KN.double(), errors_KN.double()
    rows = row_errors(x_TK, name)
    bound = x_TK.abs() @ errors_KN + rows @ (weight_KN.abs() + errors_KN)
    # what is left is the rounding of sums and of 16 bits
    slack = (2**-7 if found.dtype is torch.bfloat16 else 2**-18) * (x_TK.abs() @ weight_KN.abs())
    expected = x_TK @ weight_KN
    assert found.shape == expected.shape
    assert bool(((found.double() - expected).abs() <= 1.001 * bound + slack).all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_out", "num_in"), [(48, 80), (37, 24), (1, 700), (130, 7)])
def test_forward_and_gradient(device: str, name: str, num_out: int, num_in: int) -> None:
    """Ragged, empty and odd numbers of rows; outliers, zeros and values beyond e4m3's range among them."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(num_out)
    weight = torch.randn(num_out, num_in, generator=generator) * torch.logspace(-2, 1, num_out)[:, None]
    weight[num_out // 2] = 0.0
    weight = weight.to(device, dtype)
    frozen = WEIGHT_FORMATS[name].freeze(weight.clone(), None)
    errors = weight_errors(weight.double(), name)
    for num_rows in (0, 1, 17, 64):
        x, dy = (torch.randn(num_rows, width, generator=generator) for width in (num_in, num_out))
        for rows in (x, dy):
            rows[2:3] = 0.0
            # far beyond 448, and all of a row below e4m3's least
            rows[3:4] *= 1e6
            rows[4:5] *= 1e-8
            rows[:, 0] *= 50
            rows[5:6, 1:2] = -3e4
        x, dy = x.to(device, dtype), dy.to(device, dtype)
        assert_near(frozen.forward(x), x, weight.t(), errors_KN=errors.t(), name=name)
        assert_gradient(frozen.grad_input(dy), dy, weight, errors=errors, name=name)


def assert_gradient(dx: Tensor, dy: Tensor, weight: Tensor, *, errors: Tensor, name: str) -> None:
    """Rows of dy are rounded when they are multiplied by the scales of the weight's rows: that is what is bounded."""
    if name != "fp8":
        return assert_near(dx, dy, weight, errors_KN=errors, name=name)
    sizes_N = (weight.double().abs().amax(dim=1) / 448).clamp_min(1e-12 / 448)
    return assert_near(
        dx, dy.double() * sizes_N, weight.double() / sizes_N[:, None], errors_KN=errors / sizes_N[:, None], name=name
    )
