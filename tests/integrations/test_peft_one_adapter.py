"""Linears of one adapter: outputs and every gradient are those of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.integrations.peft_bases import adding_product
from cohort.integrations.peft_one_adapter import one_adapter

SCALE = 1.7


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("widths", [(5,), (5, 3, 9)])
@pytest.mark.parametrize("factor_dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_are_the_formula_s(
    num_rows: int, widths: tuple[int, ...], factor_dtype: torch.dtype
) -> None:
    torch.manual_seed(num_rows)
    bases = [torch.nn.Linear(6, width, bias=width != 3).double().requires_grad_(False) for width in widths]
    x_TK = torch.randn(num_rows, 6, dtype=torch.float64, requires_grad=True)
    factors = [
        torch.randn(shape, dtype=factor_dtype, requires_grad=True) for width in widths for shape in ((4, 6), (width, 4))
    ]
    products = [adding_product(base, dtype=torch.float64) for base in bases]
    found = one_adapter(x_TK, products=products, factors=factors, scale=SCALE)
    plain = [
        F.linear(x_TK, base.weight, base.bias) + SCALE * (x_TK @ a.double().T) @ b.double().T
        for base, a, b in zip(bases, factors[::2], factors[1::2], strict=True)
    ]
    weights = [torch.randn_like(own) for own in plain]
    leaves = [x_TK, *factors]

    def gradients(outputs: list[Tensor]) -> list[Tensor]:
        total = torch.stack([(own * weight).sum() for own, weight in zip(outputs, weights, strict=True)]).sum()
        return list(torch.autograd.grad(total, leaves))

    # float64 throughout; factors in float32 get gradients rounded to it
    tolerance = 1e-10 if factor_dtype is torch.float64 else 1e-5
    for own, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-10)
    for own, expected in zip(gradients(list(found)), gradients(plain), strict=True):
        assert own.dtype == expected.dtype
        torch.testing.assert_close(own, expected, rtol=tolerance, atol=tolerance)


def test_an_input_without_gradient_gets_none() -> None:
    base = torch.nn.Linear(6, 5).requires_grad_(False)
    factors = [torch.randn(2, 6, requires_grad=True), torch.randn(5, 2, requires_grad=True)]
    (found,) = one_adapter(
        torch.randn(3, 6), products=[adding_product(base, dtype=torch.float32)], factors=factors, scale=1.0
    )
    found.sum().backward()
    assert all(factor.grad is not None for factor in factors)
