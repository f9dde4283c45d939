"""Rotary embedding in plain torch: transformers' half rotation, ``x * cos + [-x2, x1] * sin``."""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.deferred_lora_term import with_term
from cohort.kernels.fp8_product import CodeRoom, write_codes

__all__ = ["fused_backward", "fused_forward", "rope_backward", "rope_forward"]


def rope_forward(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    return _rotate(q_THE, cos_TE, sin_TE), _rotate(k_TGE, cos_TE, sin_TE)


def fused_forward(
    qkv_TN: Tensor, *, heads: tuple[int, int], cos_TE: Tensor, sin_TE: Tensor, term_TN: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys of ``qkv + term``, rotated, and values."""
    num_heads, num_kv_heads = heads
    parts = with_term(qkv_TN, term_TN).unflatten(1, (-1, cos_TE.shape[1]))
    # both at once: they stand side by side
    rotated = _rotate(parts[:, : num_heads + num_kv_heads], cos_TE, sin_TE)
    return rotated[:, :num_heads], rotated[:, num_heads:], parts[:, num_heads + num_kv_heads :]


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys."""
    dq, dk = (_rotate_back(dy_THE, cos_TE, sin_TE).to(dy_THE.dtype) for dy_THE in (dq_THE, dk_TGE))
    return dq, dk


def fused_backward(
    dq_THE: Tensor, dk_TGE: Tensor, dv_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, room: CodeRoom | None = None
) -> Tensor:
    """Return the gradient of the fused product [T, (H + 2 G) E]; write its codes where asked."""
    # both at once, and written where they end up
    turned_THE, dtype = torch.cat((dq_THE, dk_TGE), dim=1), dq_THE.dtype
    num_turned = turned_THE.shape[1]
    shape = (dq_THE.shape[0], num_turned + dv_TGE.shape[1], dq_THE.shape[2])
    fused_THE = dq_THE.new_empty(shape, dtype=torch.promote_types(dtype, torch.float32))
    _rotate_back(turned_THE, cos_TE, sin_TE, out=fused_THE[:, :num_turned])
    fused_THE[:, num_turned:].copy_(dv_TGE)
    fused_TN = fused_THE.flatten(1).to(dtype)
    if room is not None:
        write_codes(fused_TN, room)
    return fused_TN


def _rotate(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    x, cos_T1E, sin_T1E = _in_working_dtype(x_THE, cos_TE, sin_TE)
    half = x.shape[-1] // 2
    rotated = x * cos_T1E
    # whole heads times the sines that their other half meets: a pass over half heads takes twice as long
    crossed = x * sin_T1E.roll(half, dims=-1)
    # adding a negative product is subtracting the product, to the bit
    rotated[..., :half].sub_(crossed[..., half:])
    rotated[..., half:].add_(crossed[..., :half])
    return rotated.to(x_THE.dtype)


def _rotate_back(dy_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the gradient before the rotation in the working precision, written to ``out`` where it is given."""
    # the two halves of cos (and sin) may differ: this is the exact transpose, not the rotation by the negative angle
    dy, cos_T1E, sin_T1E = _in_working_dtype(dy_THE, cos_TE, sin_TE)
    first, second = (dy * sin_T1E).chunk(2, dim=-1)
    rotated = torch.mul(dy, cos_T1E, out=out)
    half = dy.shape[-1] // 2
    rotated[..., :half].add_(second)
    rotated[..., half:].sub_(first)
    return rotated


def _in_working_dtype(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    working = torch.promote_types(x_THE.dtype, torch.float32)
    return x_THE.to(working), cos_TE.to(working).unsqueeze(1), sin_TE.to(working).unsqueeze(1)
