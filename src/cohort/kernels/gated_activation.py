"""The activation of a gated feed-forward block: ``activation(gate) * up`` over a fused gate-and-up product.

SiLU has Triton kernels (:mod:`cohort.kernels.swiglu`); GELU runs in plain torch everywhere.

Shapes:  T tokens · F width of gate and up together
"""

from __future__ import annotations

import enum
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.deferred_lora_term import Apart, joined
from cohort.kernels.swiglu import swiglu

__all__ = ["Activation", "gated_activation"]


class Activation(enum.Enum):
    """What the gate goes through. GELU comes exact, by the error function, and by the usual tanh."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"


def gated_activation(gate_up_TF: Tensor | Apart, *, activation: Activation) -> Tensor:
    """Return ``activation(gate) * up`` [T, F/2], where ``gate_up = [gate, up]`` side by side; differentiable."""
    if isinstance(gate_up_TF, Apart) and activation is Activation.SILU:
        return swiglu(gate_up_TF.product_TN, term_TF=gate_up_TF.term_TN)
    gate_up_TF = joined(gate_up_TF)
    if activation is Activation.SILU:
        return swiglu(gate_up_TF)
    result: Tensor = _GatedGelu.apply(gate_up_TF, activation is Activation.GELU_TANH)
    return result


class _GatedGelu(torch.autograd.Function):
    """``forward(gate_up, with_tanh) -> y``; keeps its input alone."""

    @staticmethod
    def forward(ctx: Any, gate_up_TF: Tensor, with_tanh: bool) -> Tensor:  # noqa: FBT001 - autograd passes by place
        ctx.save_for_backward(gate_up_TF)
        ctx.with_tanh = with_tanh
        gate, up = _working(gate_up_TF)
        y, _ = _gelu(gate, with_tanh=with_tanh)
        return (y * up).to(gate_up_TF.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TF: Tensor) -> tuple[Tensor | None, ...]:
        (gate_up_TF,) = ctx.saved_tensors
        gate, up = _working(gate_up_TF)
        y, slope = _gelu(gate, with_tanh=ctx.with_tanh)
        dy = dy_TF.to(gate.dtype)
        return torch.cat((dy * up * slope, dy * y), dim=-1).to(gate_up_TF.dtype), None


def _working(gate_up_TF: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = gate_up_TF.to(torch.promote_types(gate_up_TF.dtype, torch.float32)).chunk(2, dim=-1)
    return gate, up


def _gelu(x: Tensor, *, with_tanh: bool) -> tuple[Tensor, Tensor]:
    # exp and erf rather than gelu and tanh: as with SiLU, those may give a row other last bits depending on where it
    # stands in the tensor, and a packed row must not notice its place
    if with_tanh:
        # 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
        double_u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        sigmoid = 1 / (1 + torch.exp(-double_u))
        double_du = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid) * double_du)
    below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return x * below, below + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
