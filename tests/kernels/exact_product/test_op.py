"""Exact products are right, and a row's bits are its own at every number of rows."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.exact_product import exact_product, has_exact_product
from tests.kernels.closeness import assert_near, low_precision


@pytest.mark.parametrize(("rows", "out", "inner"), [(70, 50, 40), (1, 24, 130), (33, 16, 64), (0, 8, 16)])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_definition(triton_device: str, rows: int, out: int, inner: int, bias: bool) -> None:
    for dtype in (torch.float32, low_precision(triton_device)):
        generator = torch.Generator().manual_seed(rows)
        x, dy, w, b = (
            torch.randn(*shape, generator=generator).to(triton_device, dtype)
            for shape in ((rows, inner), (rows, out), (out, inner), (out,))
        )
        y = exact_product(x, w, bias_N=b if bias else None, forward=True, backend=Backend.TRITON)
        expected = x.double() @ w.double().T + (b.double() if bias else 0.0)
        # a sum of up to 130 products in float32, rounded to the output's dtype once, or twice with a bias
        assert_near(y, expected, roundings=2.0)
        dx = exact_product(dy, w, forward=False, backend=Backend.TRITON)
        assert_near(dx, dy.double() @ w.double(), roundings=2.0)


def test_a_row_has_the_same_bits_in_any_stream(triton_device: str) -> None:
    width = 72 if triton_device == "cpu" else 1032
    generator = torch.Generator().manual_seed(1)
    dtype = low_precision(triton_device)
    x, w = (torch.randn(n, width, generator=generator).to(triton_device, dtype) for n in (300, 200))
    for forward in (True, False):
        own = x if forward else x[:, :200] if width >= 200 else torch.cat([x] * 3, dim=1)[:, :200]
        whole = exact_product(own, w, forward=forward, backend=Backend.TRITON)
        for start, stop in ((0, 1), (0, 17), (37, 111), (200, 300)):
            part = exact_product(own[start:stop], w, forward=forward, backend=Backend.TRITON)
            assert torch.equal(part, whole[start:stop])


def test_what_does_not_fit_is_refused() -> None:
    x, w = torch.zeros(3, 4), torch.zeros(5, 6)
    with pytest.raises(ShapeError, match="does not fit"):
        exact_product(x, w, forward=True)
    with pytest.raises(ShapeError, match="bias belongs to the forward product"):
        exact_product(torch.zeros(3, 5), w, bias_N=torch.zeros(5), forward=False)


def test_a_cpu_is_always_exact() -> None:
    assert has_exact_product("cpu")
    x, w = torch.randn(32, 8), torch.randn(4, 8)
    assert torch.equal(exact_product(x, w, forward=True), torch.nn.functional.linear(x, w))
