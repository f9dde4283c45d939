"""RMSNorm in plain torch, operation by operation what transformers and its autograd do.

Statistics are float32 whatever the dtype of ``x`` (float64 included), then one cast, then the weight: that is what the
checkpoints were trained with, and it makes these results bit-equal to transformers' on CPU. A float32 weight that is
wider than ``x`` multiplies before the cast: Gemma's order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.deferred_lora_term import with_term
from cohort.kernels.fp8_product import CodeRoom, Fp8Rows, write_codes
from cohort.kernels.fp8_product.reference import quantise_rows

__all__ = [
    "add_rms_norm_backward",
    "add_rms_norm_forward",
    "norm_with_inverse",
    "rms_norm_backward",
    "rms_norm_forward",
]


def rms_norm_forward(x_TD: Tensor, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None) -> Tensor:
    """Return ``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, in ``x``'s shape and dtype."""
    y_TD, _ = norm_with_inverse(x_TD, weight_D=weight_D, eps=eps)
    if codes is not None:
        for place, found in zip((codes.codes_TK, codes.scales_T), quantise_rows(y_TD), strict=True):
            place.copy_(found)
    return y_TD


def norm_with_inverse(x_TD: Tensor, *, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm, and ``1 / sqrt(mean(x^2) + eps)`` in float32, which the backward pass may be given."""
    x32_TD = x_TD.to(torch.float32)
    room_TD = x32_TD.pow(2)
    inverse_T1 = torch.rsqrt(room_TD.mean(-1, keepdim=True) + eps)
    normed_TD = torch.mul(x32_TD, inverse_T1, out=room_TD)
    if weight_D.dtype != x_TD.dtype:
        return normed_TD.mul_(weight_D).to(x_TD.dtype), inverse_T1
    return normed_TD.to(x_TD.dtype).mul_(weight_D), inverse_T1


def rms_norm_backward(
    dy_TD: Tensor, *, x_TD: Tensor, weight_D: Tensor, eps: float, inverse_T1: Tensor | None = None
) -> Tensor:
    """Return dx; the inverse norm is computed again where it is not given, since ``x`` is read anyway."""
    x32_TD = x_TD.to(torch.float32)
    # one buffer for all that is as large as x: fresh ones are not in the caches
    if inverse_T1 is None:
        room_TD = x32_TD.pow(2)
        inverse_T1 = torch.rsqrt(room_TD.mean(-1, keepdim=True) + eps)
    else:
        room_TD = torch.empty_like(x32_TD)
    is_gain = weight_D.dtype != x_TD.dtype
    normed_grad_TD = dy_TD.to(torch.float32) * weight_D if is_gain else (dy_TD * weight_D).to(torch.float32)
    inverse_grad_T1 = torch.mul(normed_grad_TD, x32_TD, out=room_TD).sum(-1, keepdim=True)
    square_grad_T1 = (-0.5 * inverse_grad_T1 * inverse_T1.pow(3)) / x_TD.shape[-1]
    # twice the factor rounds nothing: the bits of autograd's own order, x times 2 first, in one pass
    torch.mul(x32_TD, square_grad_T1.mul_(2.0), out=room_TD)
    return normed_grad_TD.mul_(inverse_T1).add_(room_TD).to(x_TD.dtype)


def add_rms_norm_forward(
    x_TD: Tensor,
    *,
    residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    codes: Fp8Rows | None = None,
    term_TD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(residual + x), residual + x)``, the term added to ``x`` where there is one."""
    new_residual_TD = residual_TD + with_term(x_TD, term_TD)
    return rms_norm_forward(new_residual_TD, weight_D=weight_D, eps=eps, codes=codes), new_residual_TD


def add_rms_norm_backward(
    dy_TD: Tensor,
    *,
    dresidual_TD: Tensor | None,
    new_residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    room: CodeRoom | None = None,
    inverse_T1: Tensor | None = None,
) -> Tensor:
    """Return the gradient of both summands; ``dresidual_TD`` is what flows into the new residual past the norm."""
    dx_TD = rms_norm_backward(dy_TD, x_TD=new_residual_TD, weight_D=weight_D, eps=eps, inverse_T1=inverse_T1)
    dx_TD = dx_TD if dresidual_TD is None else dx_TD.add_(dresidual_TD)
    if room is not None:
        write_codes(dx_TD, room)
    return dx_TD
