"""The public op: the gated activation over a fused gate-and-up product."""

from __future__ import annotations

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.swiglu.autograd import SwigluFunction

__all__ = ["swiglu"]


def swiglu(gate_up_TF: Tensor, *, backend: Backend | None = None) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2], where ``gate_up = [gate, up]`` side by side; differentiable.

    Raises:
        ShapeError: the last axis is odd.
    """
    if gate_up_TF.ndim != 2 or gate_up_TF.shape[1] % 2:
        raise ShapeError(f"gate and up side by side must be [T, F] with F even, got {tuple(gate_up_TF.shape)}")
    result: Tensor = SwigluFunction.apply(gate_up_TF, choose_backend(gate_up_TF, backend=backend))
    return result
