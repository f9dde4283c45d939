"""RMSNorm as autograd nodes. The weight is frozen: it gets no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation

__all__ = ["AddRmsNormFunction", "ForkRmsNormFunction", "RmsNormFunction"]


class RmsNormFunction(torch.autograd.Function):
    """``forward(x, weight, eps, backend) -> y``; keeps ``x`` alone."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend) -> Tensor:
        """Compute and keep what backward needs."""
        ctx.save_for_backward(x_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        y_TD: Tensor = implementation("rms_norm", backend).rms_norm_forward(x_TD, weight_D=weight_D, eps=eps)
        return y_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        x_TD, weight_D = ctx.saved_tensors
        kernels = implementation("rms_norm", ctx.backend)
        return kernels.rms_norm_backward(dy_TD, x_TD=x_TD, weight_D=weight_D, eps=ctx.eps), None, None, None


class AddRmsNormFunction(torch.autograd.Function):
    """``forward(x, residual, weight, eps, backend) -> (y, new_residual)``; keeps the new residual alone."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend
    ) -> tuple[Tensor, Tensor]:
        """Compute and keep what backward needs."""
        y_TD, new_residual_TD = implementation("rms_norm", backend).add_rms_norm_forward(
            x_TD, residual_TD=residual_TD, weight_D=weight_D, eps=eps
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(new_residual_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        return y_TD, new_residual_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor | None, dresidual_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        if dy_TD is None:  # only the residual stream goes on: the sum hands its gradient through
            return dresidual_TD, dresidual_TD, None, None, None
        new_residual_TD, weight_D = ctx.saved_tensors
        dx_TD = implementation("rms_norm", ctx.backend).add_rms_norm_backward(
            dy_TD, dresidual_TD=dresidual_TD, new_residual_TD=new_residual_TD, weight_D=weight_D, eps=ctx.eps
        )
        return dx_TD, dx_TD, None, None, None


class ForkRmsNormFunction(torch.autograd.Function):
    """``forward(x, weight, eps, backend) -> (y, x)``; keeps ``x`` alone, and its two gradients meet in one kernel."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend) -> tuple[Tensor, Tensor]:
        """Compute and keep what backward needs."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        y_TD: Tensor = implementation("rms_norm", backend).rms_norm_forward(x_TD, weight_D=weight_D, eps=eps)
        return y_TD, x_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor | None, dpassed_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        if dy_TD is None:
            return dpassed_TD, None, None, None
        x_TD, weight_D = ctx.saved_tensors
        dx_TD = implementation("rms_norm", ctx.backend).add_rms_norm_backward(
            dy_TD, dresidual_TD=dpassed_TD, new_residual_TD=x_TD, weight_D=weight_D, eps=ctx.eps
        )
        return dx_TD, None, None, None
