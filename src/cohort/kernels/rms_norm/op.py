"""The public ops: RMSNorm over the last axis, alone or of a sum. The weight is frozen: it gets no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.deferred_lora_term import check_term
from cohort.kernels.fp8_product import Fp8Rows, handed_behind

__all__ = ["add_rms_norm", "fork_rms_norm", "rms_norm"]


def rms_norm(
    x_TD: Tensor, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None, backend: Backend | None = None
) -> Tensor:
    """Return ``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, as transformers computes it.

    Statistics in float32, cast to ``x``'s dtype, then times the weight. A float32 weight multiplies before the cast, as
    Gemma's does. Differentiable in ``x``; the weight is frozen.

    Args:
        x_TD: Any leading axes: [T, D] for a layer's input, [T, H, E] for query and key norms.
        codes: Where the result [T, D] is written in e4m3 as well, as ``quantise_rows`` rounds it, in the same pass.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: the weight is not as wide as ``x``, or ``codes`` have another shape.
    """
    _check_width(x_TD, weight_D, codes)
    chosen = choose_backend(x_TD, backend=backend)
    if not torch.is_grad_enabled():
        # a node of autograd takes as long as the norm of a few rows
        normed: Tensor = implementation("rms_norm", chosen).rms_norm_forward(
            x_TD, weight_D=weight_D, eps=eps, codes=codes
        )
        return normed
    result: Tensor = _RmsNormFunction.apply(x_TD, weight_D, eps, chosen, codes)
    return result


def add_rms_norm(
    x_TD: Tensor,
    *,
    residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    codes: Fp8Rows | None = None,
    term_TD: Tensor | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(residual + x), residual + x)``: a block's output joins the stream and is normed in one pass.

    Differentiable in ``x`` and ``residual`` (they share one gradient); the weight is frozen. ``codes`` are those of
    :func:`rms_norm`.

    Args:
        term_TD: float32 [T, D], contiguous: added to ``x`` first, which is rounded as if it had been stored. Outside
            autograd.

    Raises:
        ShapeError: the weight is not as wide as ``x``, or ``residual``, ``codes`` or the term have another shape.
    """
    _check_width(x_TD, weight_D, codes)
    if residual_TD.shape != x_TD.shape or residual_TD.dtype != x_TD.dtype:
        raise ShapeError(
            f"residual is {residual_TD.dtype} {tuple(residual_TD.shape)} but x is {x_TD.dtype} {tuple(x_TD.shape)}"
        )
    chosen = choose_backend(x_TD, backend=backend)
    if term_TD is not None:
        check_term(x_TD, term_TD)
    if term_TD is not None or not torch.is_grad_enabled():
        both: tuple[Tensor, Tensor] = implementation("rms_norm", chosen).add_rms_norm_forward(
            x_TD, residual_TD=residual_TD, weight_D=weight_D, eps=eps, codes=codes, term_TD=term_TD
        )
        return both
    result: tuple[Tensor, Tensor] = _AddRmsNormFunction.apply(x_TD, residual_TD, weight_D, eps, chosen, codes)
    return result


def fork_rms_norm(
    x_TD: Tensor, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(x), x)``: :func:`add_rms_norm` of a sum that is there already, to the bit in both directions.

    Differentiable in ``x``; the weight is frozen. ``codes`` are those of :func:`rms_norm`.

    Raises:
        ShapeError: the weight is not as wide as ``x``, or ``codes`` have another shape.
    """
    _check_width(x_TD, weight_D, codes)
    result: tuple[Tensor, Tensor] = _ForkRmsNormFunction.apply(
        x_TD, weight_D, eps, choose_backend(x_TD, backend=backend), codes
    )
    return result


def _check_width(x_TD: Tensor, weight_D: Tensor, codes: Fp8Rows | None) -> None:
    if weight_D.ndim != 1 or x_TD.ndim == 0 or weight_D.shape[0] != x_TD.shape[-1]:
        raise ShapeError(f"a weight of shape {tuple(weight_D.shape)} cannot norm the last axis of {tuple(x_TD.shape)}")
    if codes is not None and codes.codes_TK.shape != x_TD.shape:
        raise ShapeError(f"codes are {tuple(codes.codes_TK.shape)}; the norm of x gives {tuple(x_TD.shape)}, a matrix")


class _RmsNormFunction(torch.autograd.Function):
    """``forward(x, weight, eps, backend, codes) -> y``; keeps ``x`` alone."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend, codes: Fp8Rows | None
    ) -> Tensor:
        ctx.save_for_backward(x_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        kernels = implementation("rms_norm", backend)
        y_TD: Tensor = kernels.rms_norm_forward(x_TD, weight_D=weight_D, eps=eps, codes=codes)
        return y_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_D = ctx.saved_tensors
        kernels = implementation("rms_norm", ctx.backend)
        return kernels.rms_norm_backward(dy_TD, x_TD=x_TD, weight_D=weight_D, eps=ctx.eps), *[None] * 4


class _AddRmsNormFunction(torch.autograd.Function):
    """``forward(x, residual, weight, eps, backend, codes) -> (y, new_residual)``; keeps the new residual alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        residual_TD: Tensor,
        weight_D: Tensor,
        eps: float,
        backend: Backend,
        codes: Fp8Rows | None,
    ) -> tuple[Tensor, Tensor]:
        y_TD, new_residual_TD = implementation("rms_norm", backend).add_rms_norm_forward(
            x_TD, residual_TD=residual_TD, weight_D=weight_D, eps=eps, codes=codes
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(new_residual_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        return y_TD, new_residual_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor | None, dresidual_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy_TD is None:  # only the residual stream goes on: the sum hands its gradient through
            return dresidual_TD, dresidual_TD, *[None] * 4
        new_residual_TD, weight_D = ctx.saved_tensors
        handed = handed_behind(ctx)
        is_matrix = new_residual_TD.ndim == 2
        room = handed.room(new_residual_TD, width=weight_D.shape[0]) if handed is not None and is_matrix else None
        dx_TD = implementation("rms_norm", ctx.backend).add_rms_norm_backward(
            dy_TD, dresidual_TD=dresidual_TD, new_residual_TD=new_residual_TD, weight_D=weight_D, eps=ctx.eps, room=room
        )
        if handed is not None and room is not None:
            handed.hand(dx_TD, room)
        return dx_TD, dx_TD, *[None] * 4


class _ForkRmsNormFunction(torch.autograd.Function):
    """``forward(x, weight, eps, backend, codes) -> (y, x)``; keeps ``x``, whose gradients meet in one kernel."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend, codes: Fp8Rows | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_TD, weight_D)
        ctx.eps, ctx.backend = eps, backend
        kernels = implementation("rms_norm", backend)
        y_TD: Tensor = kernels.rms_norm_forward(x_TD, weight_D=weight_D, eps=eps, codes=codes)
        return y_TD, x_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor | None, dpassed_TD: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy_TD is None:
            return dpassed_TD, *[None] * 4
        x_TD, weight_D = ctx.saved_tensors
        dx_TD = implementation("rms_norm", ctx.backend).add_rms_norm_backward(
            dy_TD, dresidual_TD=dpassed_TD, new_residual_TD=x_TD, weight_D=weight_D, eps=ctx.eps
        )
        return dx_TD, *[None] * 4
