"""SwiGLU as an autograd node; keeps its input alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation

__all__ = ["SwigluFunction"]


class SwigluFunction(torch.autograd.Function):
    """``forward(gate_up, backend) -> y``."""

    @staticmethod
    def forward(ctx: Any, gate_up_TF: Tensor, backend: Backend) -> Tensor:
        """Compute and keep what backward needs."""
        ctx.save_for_backward(gate_up_TF)
        ctx.backend = backend
        y_TF: Tensor = implementation("swiglu", backend).swiglu_forward(gate_up_TF)
        return y_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TF: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        (gate_up_TF,) = ctx.saved_tensors
        return implementation("swiglu", ctx.backend).swiglu_backward(dy_TF, gate_up_TF=gate_up_TF), None
