"""The gated activations against torch's own, and bits that do not depend on a row's place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.kernels.gated_activation import Activation, gated_activation


def expected(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if activation is Activation.SILU:
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation is Activation.GELU_TANH else "none") * up


@pytest.mark.parametrize("activation", Activation)
def test_equals_torch_forward_and_backward(activation: Activation) -> None:
    gate_up = (torch.randn(9, 46, dtype=torch.float64) * 4).requires_grad_()
    dy = torch.randn(9, 23, dtype=torch.float64)
    both = gated_activation(gate_up, activation=activation), expected(gate_up, activation)
    torch.testing.assert_close(*both, rtol=1e-13, atol=1e-13)
    gradients = (torch.autograd.grad(y, gate_up, dy)[0] for y in both)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", Activation)
def test_extreme_gates_stay_finite(activation: Activation) -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4])
    gate_up = torch.cat((gate, torch.full_like(gate, 2.0)))[None].requires_grad_()
    y = gated_activation(gate_up, activation=activation)
    assert torch.equal(y[0, -2:], torch.tensor([200.0, 2e4]))
    assert torch.autograd.grad(y.sum(), gate_up)[0].isfinite().all()


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("width", [74, 75 * 2, 128])
def test_a_row_has_the_same_bits_wherever_it_stands(activation: Activation, width: int) -> None:
    gate_up = torch.randn(60, width)

    def run(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.clone().requires_grad_()
        y = gated_activation(rows, activation=activation)
        return y.detach(), torch.autograd.grad(y.sum(), rows)[0]

    whole = run(gate_up)
    for first in (1, 2, 7):
        assert all(torch.equal(a[first:40], b) for a, b in zip(whole, run(gate_up[first:40]), strict=True))
