from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.swiglu import swiglu
from tests.kernels.closeness import assert_near, low_precision

SHAPES = [(1, 2), (3, 10), (5, 344), (2, 2304), (4, 2056), (0, 8), (3, 0)]


def _exact(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def test_is_silu_of_the_gate_times_up() -> None:
    gate_up = (torch.randn(9, 46, dtype=torch.float64) * 4).requires_grad_()
    dy = torch.randn(9, 23, dtype=torch.float64)
    found, expected = swiglu(gate_up), _exact(gate_up)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    gradients = (torch.autograd.grad(y, gate_up, dy)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


def _assert_extremes_are_finite(device: str, backend: Backend) -> None:
    gate = torch.tensor([-1e4, -200.0, -100.0, -89.0, 0.0, 89.0, 200.0, 1e4], device=device)
    gate_up = torch.cat((gate, torch.full_like(gate, 2.0)))[None].requires_grad_()
    y = swiglu(gate_up, backend=backend)
    (gradient,) = torch.autograd.grad(y.sum(), gate_up)
    assert gradient.isfinite().all()
    assert torch.equal(y[0].detach(), torch.where(gate > 0, 2 * gate, 0.0).where(gate.abs() > 100, y[0].detach()))


def test_extreme_gates_have_finite_gradients() -> None:
    _assert_extremes_are_finite("cpu", Backend.REFERENCE)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_triton_extreme_gates_have_finite_gradients(triton_device: str) -> None:
    _assert_extremes_are_finite(triton_device, Backend.TRITON)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_triton_forward_and_gradient(triton_device: str, shape: tuple[int, int], low: bool) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    num_rows, width = shape
    buffer = torch.randn(num_rows, width + 16, device=triton_device).to(dtype)
    gate_up = buffer[:, :width].detach().requires_grad_()  # rows of a wider buffer
    dy = torch.randn(num_rows, width // 2 + 5, device=triton_device).to(dtype)[:, : width // 2]
    y = swiglu(gate_up, backend=Backend.TRITON)
    (gradient,) = torch.autograd.grad(y, gate_up, dy)
    exact_input = gate_up.detach().double().requires_grad_()
    exact = _exact(exact_input)
    assert_near(y, exact)
    assert_near(gradient, torch.autograd.grad(exact, exact_input, dy.double())[0])


def test_odd_widths_are_refused() -> None:
    with pytest.raises(ShapeError, match="F even"):
        swiglu(torch.randn(3, 5))


@pytest.mark.gpu
def test_more_rows_than_a_grid_axis_holds() -> None:
    gate_up = torch.randn(65_552, 32, device="cuda").requires_grad_()
    found, expected = swiglu(gate_up), _exact(gate_up)
    dy = torch.randn_like(found)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    gradients = (torch.autograd.grad(y, gate_up, dy)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
