from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.rms_norm import add_rms_norm, fork_rms_norm, rms_norm
from tests.kernels.closeness import assert_near, low_precision

EPS = 1e-5
SHAPES = [(1, 3), (3, 5), (7, 96), (33, 128), (2, 1025), (5, 3, 16), (4, 9, 64), (0, 24), (3, 0, 8)]


def _exact(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return weight.double() * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def test_a_float32_weight_multiplies_before_the_cast(triton_device: str) -> None:
    dtype = low_precision(triton_device)
    x, residual, dy = (torch.randn(33, 128, dtype=dtype, device=triton_device).requires_grad_() for _ in range(3))
    weight = 1.0 + torch.randn(128, device=triton_device) * 1e-3
    found, expected = (
        add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=EPS, backend=backend)[0] for backend in Backend
    )
    # both round once: they differ where float32 sums of another order fall on the other side
    assert (found != expected).float().mean() < 0.01
    assert_near(*(torch.autograd.grad(y, x, dy.detach())[0] for y in (found, expected)))


def test_adding_is_the_sum_then_the_norm() -> None:
    x, residual, dy, dresidual = torch.randn(4, 17, 24, dtype=torch.float64)
    weight = torch.randn(24, dtype=torch.float64)
    x.requires_grad_()
    residual.requires_grad_()
    found = add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=EPS)
    total = residual + x
    expected = (rms_norm(total, weight_D=weight, eps=EPS), total)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    for outputs, gradients in ((slice(0, 2), (dy, dresidual)), (slice(0, 1), (dy,)), (slice(1, 2), (dresidual,))):
        mine = torch.autograd.grad(found[outputs], (x, residual), gradients, retain_graph=True)
        theirs = torch.autograd.grad(expected[outputs], (x, residual), gradients, retain_graph=True)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_triton_forward_and_gradient(triton_device: str, shape: tuple[int, ...], low: bool) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    x, dy = (torch.randn(shape, dtype=dtype, device=triton_device) for _ in range(2))
    weight = torch.randn(shape[-1], dtype=dtype, device=triton_device)
    x.requires_grad_()
    y = rms_norm(x, weight_D=weight, eps=EPS, backend=Backend.TRITON)
    (dx,) = torch.autograd.grad(y, x, dy)
    exact_x = x.detach().double().requires_grad_()
    exact_y = _exact(exact_x, weight)
    # in 16 bits the normed value is rounded before the weight as well
    assert_near(y, exact_y, roundings=2)
    assert_near(dx, torch.autograd.grad(exact_y, exact_x, dy.double())[0], roundings=2)


@pytest.mark.parametrize("shape", [(1, 8), (9, 96), (3, 1030), (0, 16)])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
@pytest.mark.parametrize("outputs", ["both", "normed", "residual"])
def test_triton_adding(triton_device: str, shape: tuple[int, ...], low: bool, outputs: str) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    x, residual, dy, dresidual = (torch.randn(shape, dtype=dtype, device=triton_device) for _ in range(4))
    weight = torch.randn(shape[-1], dtype=dtype, device=triton_device)
    x.requires_grad_()
    residual.requires_grad_()
    found = add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=EPS, backend=Backend.TRITON)
    total = (x.detach() + residual.detach()).double().requires_grad_()  # rounded to the stream's dtype, then exact
    expected = (_exact(total, weight), total * 1)
    assert_near(found[0], expected[0], roundings=2)
    assert torch.equal(found[1].double(), expected[1])
    chosen = {"both": slice(0, 2), "normed": slice(0, 1), "residual": slice(1, 2)}[outputs]
    upstream = (dy, dresidual)[chosen]
    mine = torch.autograd.grad(found[chosen], (x, residual), upstream)
    (exact,) = torch.autograd.grad(expected[chosen], total, [g.double() for g in upstream])
    for gradient in mine:
        assert_near(gradient, exact, roundings=2)


@pytest.mark.parametrize("outputs", [slice(0, 2), slice(0, 1), slice(1, 2)], ids=["both", "normed", "passed"])
@pytest.mark.parametrize("on_triton", [False, True], ids=["torch", "triton"])
def test_forking_is_adding_to_the_bit(triton_device: str, on_triton: bool, outputs: slice) -> None:
    backend, device = (Backend.TRITON, triton_device) if on_triton else (Backend.REFERENCE, "cpu")
    dtype = low_precision(device)
    x, residual, dy, dpassed = (torch.randn(9, 96, dtype=dtype, device=device) for _ in range(4))
    weight = torch.randn(96, dtype=dtype, device=device)
    x.requires_grad_()
    total = (residual + x.detach()).requires_grad_()
    expected = add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=EPS, backend=backend)
    found = fork_rms_norm(total, weight_D=weight, eps=EPS, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    upstream = (dy, dpassed)[outputs]
    (theirs,) = torch.autograd.grad(expected[outputs], x, upstream)
    (mine,) = torch.autograd.grad(found[outputs], total, upstream)
    assert torch.equal(mine, theirs)


def test_triton_reads_views_into_a_fused_product(triton_device: str) -> None:
    fused = torch.randn(6, 7 * 16, device=triton_device)
    view = fused.unflatten(1, (7, 16))[:, 2:5]
    weight = torch.randn(16, device=triton_device)
    dy = torch.randn(6, 3, 16, device=triton_device)
    results = []
    for x in (view, view.contiguous()):
        x = x.detach().requires_grad_()
        y = rms_norm(x, weight_D=weight, eps=EPS, backend=Backend.TRITON)
        results.append((y.detach(), torch.autograd.grad(y, x, dy)[0]))
    for a, b in zip(*results, strict=True):
        assert_near(a, b)  # other strides may be compiled to another order of the row's sum


def test_triton_row_is_its_own(triton_device: str) -> None:
    x = torch.randn(40, 48, device=triton_device)
    weight = torch.randn(48, device=triton_device)
    alone = rms_norm(x[7:8].clone(), weight_D=weight, eps=EPS, backend=Backend.TRITON)
    x[8] = torch.nan
    assert torch.equal(rms_norm(x, weight_D=weight, eps=EPS, backend=Backend.TRITON)[7:8], alone)
    assert torch.equal(rms_norm(x[3:21], weight_D=weight, eps=EPS, backend=Backend.TRITON)[4:5], alone)


def test_wrong_widths_are_refused() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ShapeError, match=r"weight of shape \(7,\)"):
        rms_norm(x, weight_D=torch.ones(7), eps=EPS)
    with pytest.raises(ShapeError, match="residual is"):
        add_rms_norm(x, residual_TD=x[:2], weight_D=torch.ones(8), eps=EPS)
