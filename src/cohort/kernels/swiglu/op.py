"""The public op: the gated activation over a fused gate-and-up product. Its autograd node keeps its input alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.apart import check_term
from cohort.kernels.backend import Backend, choose_backend, implementation

__all__ = ["swiglu"]


def swiglu(gate_up_TF: Tensor, *, term_TF: Tensor | None = None, backend: Backend | None = None) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2], where ``gate_up = [gate, up]`` side by side; differentiable.

    Args:
        term_TF: float32 [T, F], contiguous: added to gate and up first, which are rounded as if they had been stored.
            Outside autograd.

    Raises:
        ShapeError: the last axis is odd, or the term has another shape.
    """
    if gate_up_TF.ndim != 2 or gate_up_TF.shape[1] % 2:
        raise ShapeError(f"gate and up side by side must be [T, F] with F even, got {tuple(gate_up_TF.shape)}")
    chosen = choose_backend(gate_up_TF, backend=backend)
    if term_TF is not None:
        check_term(gate_up_TF, term_TF)
        summed: Tensor = implementation("swiglu", chosen).swiglu_forward(gate_up_TF, term_TF=term_TF)
        return summed
    result: Tensor = _SwigluFunction.apply(gate_up_TF, chosen)
    return result


class _SwigluFunction(torch.autograd.Function):
    """``forward(gate_up, backend) -> y``."""

    @staticmethod
    def forward(ctx: Any, gate_up_TF: Tensor, backend: Backend) -> Tensor:
        ctx.save_for_backward(gate_up_TF)
        ctx.backend = backend
        y_TF: Tensor = implementation("swiglu", backend).swiglu_forward(gate_up_TF)
        return y_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TF: Tensor) -> tuple[Tensor | None, ...]:
        (gate_up_TF,) = ctx.saved_tensors
        return implementation("swiglu", ctx.backend).swiglu_backward(dy_TF, gate_up_TF=gate_up_TF), None
