"""The public ops: RMSNorm over the last axis, alone or of a sum."""

from __future__ import annotations

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.rms_norm.autograd import AddRmsNormFunction, ForkRmsNormFunction, RmsNormFunction

__all__ = ["add_rms_norm", "fork_rms_norm", "rms_norm"]


def rms_norm(x_TD: Tensor, *, weight_D: Tensor, eps: float, backend: Backend | None = None) -> Tensor:
    """Return ``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, as transformers computes it.

    Statistics in float32, cast to ``x``'s dtype, then times the weight. A float32 weight multiplies before the cast, as
    Gemma's does. Differentiable in ``x``; the weight is frozen.

    Args:
        x_TD: Any leading axes: [T, D] for a layer's input, [T, H, E] for query and key norms.
        weight_D: Frozen gains.
        eps: Added to the mean square.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: the weight is not as wide as ``x``.
    """
    _check_width(x_TD, weight_D)
    result: Tensor = RmsNormFunction.apply(x_TD, weight_D, eps, choose_backend(x_TD, backend=backend))
    return result


def add_rms_norm(
    x_TD: Tensor, *, residual_TD: Tensor, weight_D: Tensor, eps: float, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(residual + x), residual + x)``: a block's output joins the stream and is normed in one pass.

    Differentiable in ``x`` and ``residual`` (they share one gradient); the weight is frozen.

    Raises:
        ShapeError: the weight is not as wide as ``x``, or ``residual`` has another shape.
    """
    _check_width(x_TD, weight_D)
    if residual_TD.shape != x_TD.shape or residual_TD.dtype != x_TD.dtype:
        raise ShapeError(
            f"residual is {residual_TD.dtype} {tuple(residual_TD.shape)} but x is {x_TD.dtype} {tuple(x_TD.shape)}"
        )
    result: tuple[Tensor, Tensor] = AddRmsNormFunction.apply(
        x_TD, residual_TD, weight_D, eps, choose_backend(x_TD, backend=backend)
    )
    return result


def fork_rms_norm(
    x_TD: Tensor, *, weight_D: Tensor, eps: float, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(x), x)``: :func:`add_rms_norm` of a sum that is there already, to the bit in both directions.

    Differentiable in ``x``; the weight is frozen.

    Raises:
        ShapeError: the weight is not as wide as ``x``.
    """
    _check_width(x_TD, weight_D)
    result: tuple[Tensor, Tensor] = ForkRmsNormFunction.apply(
        x_TD, weight_D, eps, choose_backend(x_TD, backend=backend)
    )
    return result


def _check_width(x_TD: Tensor, weight_D: Tensor) -> None:
    if weight_D.ndim != 1 or x_TD.ndim == 0 or weight_D.shape[0] != x_TD.shape[-1]:
        raise ShapeError(f"a weight of shape {tuple(weight_D.shape)} cannot norm the last axis of {tuple(x_TD.shape)}")
