"""The definition: rounding by rows, one set of codes for both products, and what is not finite stays in its row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.kernels.fp8_product.reference import (
    CODES,
    LARGEST,
    fp8_forward,
    fp8_grad_input,
    quantise_rows,
    transposed,
)


def assert_within_rounding(found: Tensor, x: Tensor, weight: Tensor, *, axis: int) -> None:
    """A code keeps its value within 2^-4 of itself, small ones within 2^-19 of their row's largest; so do sums of
    products of two codes, by the sum of the sizes of what they add up.
    """
    sizes = x.double().abs(), weight.double().abs()
    floors = sizes[0].amax(dim=1, keepdim=True) * 2**-15, sizes[1].amax(dim=1 - axis, keepdim=True) * 2**-15
    # (1 + 2^-4)^2 - 1, and float32 sums
    bound = 0.13 * ((sizes[0] + floors[0]) @ (sizes[1] + floors[1]))
    assert ((found.double() - x.double() @ weight.double()).abs() <= bound).all()


@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (5, 7), (33, 100), (0, 8), (3, 0)])
def test_codes_are_the_rows_over_their_scales(num_rows: int, width: int) -> None:
    # a row whose largest entry is below 1e-12 does not use its codes to the end
    x = torch.randn(num_rows, width) * torch.logspace(-8, 9, num_rows)[:, None]
    codes, scales = quantise_rows(x)
    assert (codes.dtype, codes.shape, scales.shape) == (CODES, x.shape, (num_rows,))
    found = codes.float() * scales[:, None]
    # below 2^-6 of the scale values have steps of 2^-9 and not 2^-3 of themselves
    assert ((found - x).abs() <= torch.maximum(x.abs() / 16, scales[:, None] * 2**-10) * 1.001).all()
    if width and num_rows:
        torch.testing.assert_close(codes.float().abs().amax(dim=1), torch.full((num_rows,), LARGEST))


def test_a_row_of_zeros_and_values_beyond_the_range_are_kept() -> None:
    x = torch.zeros(3, 4)
    x[1] = torch.tensor([1e38, -1e38, 1e30, 3e37])
    x[2] = torch.tensor([1e-30, 0.0, -2e-31, 0.0])
    codes, scales = quantise_rows(x)
    assert codes.float()[0].eq(0).all()
    found = codes.float() * scales[:, None]
    torch.testing.assert_close(found[1], x[1], rtol=1 / 16, atol=1e36)
    # smaller than any weight or activation that means something
    assert found[2].abs().max() <= 1e-12


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(poison: float) -> None:
    weight_codes, weight_scales = quantise_rows(torch.randn(6, 20))
    x, dy = torch.randn(32, 20), torch.randn(32, 6)
    clean = fp8_forward(x, codes_NK=weight_codes, scales_N=weight_scales)
    clean_dx = fp8_grad_input(dy, codes_NK=weight_codes, scales_N=weight_scales)
    x[4, 3], dy[4, 2] = poison, poison
    for found, expected in (
        (fp8_forward(x, codes_NK=weight_codes, scales_N=weight_scales), clean),
        (fp8_grad_input(dy, codes_NK=weight_codes, scales_N=weight_scales), clean_dx),
    ):
        assert found[4].isnan().all()
        others = torch.arange(32) != 4
        assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize(("num_rows", "num_in", "num_out"), [(32, 48, 80), (48, 37, 5), (32, 700, 16), (0, 8, 8)])
def test_products_are_near_those_in_float64(num_rows: int, num_in: int, num_out: int) -> None:
    weight = torch.randn(num_out, num_in) * torch.logspace(-2, 1, num_out)[:, None]
    x, dy, bias = torch.randn(num_rows, num_in), torch.randn(num_rows, num_out), torch.randn(num_out)
    if num_rows:
        # an outlier channel as models have them, and one large row
        x[:, 1] *= 50
        x[3] *= 1e4
    codes, scales = quantise_rows(weight)
    y = fp8_forward(x, codes_NK=codes, scales_N=scales, bias_N=bias)
    dx = fp8_grad_input(dy, codes_NK=codes, scales_N=scales)
    assert y.shape == (num_rows, num_out)
    if num_rows:
        assert_within_rounding(y - bias, x, weight.t(), axis=1)
        assert_within_rounding(dx, dy, weight, axis=0)


def test_the_gradient_is_that_of_the_rounded_weight() -> None:
    """With rows of dy that lose nothing to rounding, dx is exactly dy times the weight that forward multiplies."""
    codes, scales = quantise_rows(torch.randn(16, 40))
    scales = torch.exp2(scales.log2().round())
    dy = torch.zeros(32, 16)
    dy[torch.arange(32), torch.arange(32) % 16] = 3.0
    expected = dy.double() @ (codes.double() * scales.double()[:, None])
    found = fp8_grad_input(dy, codes_NK=codes, scales_N=scales)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


def test_transposed_codes_are_the_same_codes() -> None:
    codes, _ = quantise_rows(torch.randn(5, 9))
    assert torch.equal(transposed(codes).float(), codes.float().t())
    assert transposed(codes).is_contiguous()
