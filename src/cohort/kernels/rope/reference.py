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
    qkv_TN: Tensor, *, heads: tuple[int, int], cos_TE: Tensor, sin_TE: Tensor, term_TN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys of ``qkv + term``, rotated, and values."""
    parts = with_term(qkv_TN, term_TN).unflatten(1, (-1, cos_TE.shape[1]))
    q_THE, k_TGE, v_TGE = parts.split((heads[0], heads[1], heads[1]), dim=1)
    return *rope_forward(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE), v_TGE


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys."""
    return _rotate_back(dq_THE, cos_TE, sin_TE), _rotate_back(dk_TGE, cos_TE, sin_TE)


def fused_backward(
    dq_THE: Tensor, dk_TGE: Tensor, dv_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, room: CodeRoom | None = None
) -> Tensor:
    """Return the gradient of the fused product [T, (H + 2 G) E]; write its codes where asked."""
    rotated = rope_backward(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE)
    fused_TN = torch.cat([x.flatten(1) for x in (*rotated, dv_TGE)], dim=1)
    if room is not None:
        write_codes(fused_TN, room)
    return fused_TN


def _rotate(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    x, cos_T1E, sin_T1E = _in_working_dtype(x_THE, cos_TE, sin_TE)
    half = x.shape[-1] // 2
    rotated = x * cos_T1E
    # adding a negative product is subtracting the product, to the bit
    rotated[..., :half] -= x[..., half:] * sin_T1E[..., :half]
    rotated[..., half:] += x[..., :half] * sin_T1E[..., half:]
    return rotated.to(x_THE.dtype)


def _rotate_back(dy_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    # the two halves of cos (and sin) may differ: this is the exact transpose, not the rotation by the negative angle
    dy, cos_T1E, sin_T1E = _in_working_dtype(dy_THE, cos_TE, sin_TE)
    first, second = (dy * sin_T1E).chunk(2, dim=-1)
    rotated = dy * cos_T1E
    half = dy.shape[-1] // 2
    rotated[..., :half] += second
    rotated[..., half:] -= first
    return rotated.to(dy_THE.dtype)


def _in_working_dtype(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    working = torch.promote_types(x_THE.dtype, torch.float32)
    return x_THE.to(working), cos_TE.to(working).unsqueeze(1), sin_TE.to(working).unsqueeze(1)
