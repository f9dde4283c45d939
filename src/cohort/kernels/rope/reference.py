"""Rotary embedding in plain torch: transformers' half rotation, ``x * cos + [-x2, x1] * sin``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rope_backward", "rope_forward", "split_rope_backward", "split_rope_forward"]


def rope_forward(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, rotated."""
    return _rotate(q_THE, cos_TE, sin_TE), _rotate(k_TGE, cos_TE, sin_TE)


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys."""
    return _rotate_back(dq_THE, cos_TE, sin_TE), _rotate_back(dk_TGE, cos_TE, sin_TE)


def split_rope_forward(
    qkv_TF: Tensor, *, num_heads: int, num_kv_heads: int, cos_TE: Tensor, sin_TE: Tensor, rows_P: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries, rotated keys and plain values of the fused product ``[q, k, v]``."""
    heads = qkv_TF.unflatten(1, (num_heads + 2 * num_kv_heads, -1))
    q_THE, k_TGE, v_TGE = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    q_rotated, k_rotated = rope_forward(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE)
    if rows_P is None:
        return q_rotated, k_rotated, v_TGE.contiguous()
    return q_rotated.index_select(0, rows_P), k_rotated.index_select(0, rows_P), v_TGE.index_select(0, rows_P)


def split_rope_backward(
    dq_PHE: Tensor, dk_PGE: Tensor, dv_PGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, places_T: Tensor | None
) -> Tensor:
    """Return the gradient of the fused product."""
    dq, dk, dv = dq_PHE, dk_PGE, dv_PGE
    if places_T is not None:
        placed_T11 = (places_T >= 0)[:, None, None]
        dq, dk, dv = (torch.where(placed_T11, x.index_select(0, places_T.clamp(min=0)), 0) for x in (dq, dk, dv))
    dq, dk = rope_backward(dq, dk, cos_TE=cos_TE, sin_TE=sin_TE)
    return torch.cat((dq, dk, dv), dim=1).flatten(1)


def _rotate(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    x, cos_T1E, sin_T1E = _in_working_dtype(x_THE, cos_TE, sin_TE)
    first, second = x.chunk(2, dim=-1)
    return (x * cos_T1E + torch.cat((-second, first), dim=-1) * sin_T1E).to(x_THE.dtype)


def _rotate_back(dy_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    # the two halves of cos (and sin) may differ: this is the exact transpose, not the rotation by the negative angle
    dy, cos_T1E, sin_T1E = _in_working_dtype(dy_THE, cos_TE, sin_TE)
    first, second = (dy * sin_T1E).chunk(2, dim=-1)
    return (dy * cos_T1E + torch.cat((second, -first), dim=-1)).to(dy_THE.dtype)


def _in_working_dtype(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    working = torch.promote_types(x_THE.dtype, torch.float32)
    return x_THE.to(working), cos_TE.to(working).unsqueeze(1), sin_TE.to(working).unsqueeze(1)
