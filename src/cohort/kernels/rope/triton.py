"""Rotary embedding on the GPU: queries, keys and (when fused) values in one launch, angles read once per token.

Shapes:  T tokens · P result rows · H query heads · G key-value heads · E head width
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of

__all__ = ["rope_backward", "rope_forward", "split_rope_backward", "split_rope_forward"]


@triton.jit
def _rotate_heads(
    x_ptr,
    y_ptr,
    x_head_stride,
    y_head_stride,
    cos_first,
    cos_second,
    sin_first,
    sin_second,
    HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
    HALF: tl.constexpr,
    HALF_UP: tl.constexpr,
    BACKWARD: tl.constexpr,
    in_row,
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, HALF_UP)[None, :]
    mask = (heads < HEADS) & (columns < HALF)
    read = (heads < tl.where(in_row >= 0, HEADS, 0)) & (columns < HALF)
    x_first = tl.load(x_ptr + heads * x_head_stride + columns, mask=read, other=0.0).to(tl.float32)
    x_second = tl.load(x_ptr + heads * x_head_stride + HALF + columns, mask=read, other=0.0).to(tl.float32)
    if BACKWARD:  # the transpose of the rotation
        y_first = x_first * cos_first + x_second * sin_second
        y_second = x_second * cos_second - x_first * sin_first
    else:
        y_first = x_first * cos_first - x_second * sin_first
        y_second = x_second * cos_second + x_first * sin_second
    tl.store(y_ptr + heads * y_head_stride + columns, y_first.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + heads * y_head_stride + HALF + columns, y_second.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    cos_ptr,
    sin_ptr,
    map_ptr,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    q_out_token_stride,
    q_out_head_stride,
    k_out_token_stride,
    k_out_head_stride,
    v_out_token_stride,
    angle_token_stride,
    Q_HEADS: tl.constexpr,
    Q_HEADS_UP: tl.constexpr,
    K_HEADS: tl.constexpr,
    K_HEADS_UP: tl.constexpr,
    HALF: tl.constexpr,
    HALF_UP: tl.constexpr,
    V_WIDTH_UP: tl.constexpr,
    MAPPED: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    out_row = tl.program_id(0).to(tl.int64)
    in_row = out_row
    if MAPPED:
        in_row = tl.load(map_ptr + out_row)  # negative: nothing is read, zeros are written
    token = out_row if BACKWARD else in_row  # the row of the stream, to which the angles belong
    columns = tl.arange(0, HALF_UP)
    mask = columns < HALF
    cos_ptr += token * angle_token_stride
    sin_ptr += token * angle_token_stride
    cos_first = tl.load(cos_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    _rotate_heads(
        q_ptr + in_row * q_token_stride,
        q_out_ptr + out_row * q_out_token_stride,
        q_head_stride,
        q_out_head_stride,
        cos_first,
        cos_second,
        sin_first,
        sin_second,
        Q_HEADS,
        Q_HEADS_UP,
        HALF,
        HALF_UP,
        BACKWARD,
        in_row,
    )
    _rotate_heads(
        k_ptr + in_row * k_token_stride,
        k_out_ptr + out_row * k_out_token_stride,
        k_head_stride,
        k_out_head_stride,
        cos_first,
        cos_second,
        sin_first,
        sin_second,
        K_HEADS,
        K_HEADS_UP,
        HALF,
        HALF_UP,
        BACKWARD,
        in_row,
    )
    if V_WIDTH_UP > 0:
        v_columns = tl.arange(0, V_WIDTH_UP)
        v_mask = v_columns < K_HEADS * HALF * 2
        v_read = v_columns < tl.where(in_row >= 0, K_HEADS * HALF * 2, 0)
        v = tl.load(v_ptr + in_row * v_token_stride + v_columns, mask=v_read, other=0.0)
        tl.store(v_out_ptr + out_row * v_out_token_stride + v_columns, v, mask=v_mask)


def rope_forward(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, rotated, contiguous."""
    return _rotated(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=False)


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys, contiguous."""
    return _rotated(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=True)


def split_rope_forward(
    qkv_TF: Tensor, *, num_heads: int, num_kv_heads: int, cos_TE: Tensor, sin_TE: Tensor, rows_P: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries [P, H, E], rotated keys and plain values [P, G, E], each contiguous."""
    qkv_TF = qkv_TF if qkv_TF.stride(1) == 1 else qkv_TF.contiguous()
    views = _views(qkv_TF, num_heads=num_heads, num_kv_heads=num_kv_heads)
    num_rows = qkv_TF.shape[0] if rows_P is None else rows_P.shape[0]
    q_PHE, k_PGE, v_PGE = (qkv_TF.new_empty(num_rows, *view.shape[1:]) for view in views)
    _launch(views, (q_PHE, k_PGE, v_PGE), cos_TE=cos_TE, sin_TE=sin_TE, backward=False, row_map=rows_P)
    return q_PHE, k_PGE, v_PGE


def split_rope_backward(
    dq_PHE: Tensor, dk_PGE: Tensor, dv_PGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, places_T: Tensor | None
) -> Tensor:
    """Return the gradient of the fused product, written in place of a concatenation."""
    num_heads, num_kv_heads, width = dq_PHE.shape[1], dk_PGE.shape[1], dq_PHE.shape[2]
    dqkv_TF = dq_PHE.new_empty(cos_TE.shape[0], (num_heads + 2 * num_kv_heads) * width)
    views = _views(dqkv_TF, num_heads=num_heads, num_kv_heads=num_kv_heads)
    operands = (_with_dense_heads(dq_PHE), _with_dense_heads(dk_PGE), dv_PGE.contiguous())
    _launch(operands, views, cos_TE=cos_TE, sin_TE=sin_TE, backward=True, row_map=places_T)
    return dqkv_TF


def _views(qkv_TF: Tensor, *, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    heads = qkv_TF.unflatten(1, (num_heads + 2 * num_kv_heads, -1))
    q_THE, k_TGE, v_TGE = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return q_THE, k_TGE, v_TGE


def _rotated(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    q_THE, k_TGE = _with_dense_heads(q_THE), _with_dense_heads(k_TGE)
    q_out_THE, k_out_TGE = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_THE, k_TGE))
    operands, results = (q_THE, k_TGE, None), (q_out_THE, k_out_TGE, None)
    _launch(operands, results, cos_TE=cos_TE, sin_TE=sin_TE, backward=backward, row_map=None)
    return q_out_THE, k_out_TGE


def _with_dense_heads(x_THE: Tensor) -> Tensor:
    return x_THE if x_THE.stride(2) == 1 else x_THE.contiguous()


def _launch(
    operands: tuple[Tensor, Tensor, Tensor | None],
    results: tuple[Tensor, Tensor, Tensor | None],
    *,
    cos_TE: Tensor,
    sin_TE: Tensor,
    backward: bool,
    row_map: Tensor | None,
) -> None:
    (q, k, v), (q_out, k_out, v_out) = operands, results
    num_rows, num_heads, width = q_out.shape
    if num_rows == 0:
        return
    cos_TE, sin_TE = cos_TE.contiguous(), sin_TE.contiguous()
    heads_up, half_up = triton.next_power_of_2(num_heads), triton.next_power_of_2(width // 2)
    num_kv_heads = k.shape[1]
    with on_device_of(q):
        _rope_kernel[(num_rows,)](
            q,
            k,
            k if v is None else v,
            q_out,
            k_out,
            k_out if v_out is None else v_out,
            cos_TE,
            sin_TE,
            cos_TE if row_map is None else row_map,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            0 if v is None else v.stride(0),
            q_out.stride(0),
            q_out.stride(1),
            k_out.stride(0),
            k_out.stride(1),
            0 if v_out is None else v_out.stride(0),
            width,
            Q_HEADS=num_heads,
            Q_HEADS_UP=heads_up,
            K_HEADS=num_kv_heads,
            K_HEADS_UP=triton.next_power_of_2(num_kv_heads),
            HALF=width // 2,
            HALF_UP=half_up,
            V_WIDTH_UP=0 if v is None else triton.next_power_of_2(num_kv_heads * width),
            MAPPED=row_map is not None,
            BACKWARD=backward,
            # two heads' worth of 16-byte loads per thread: the angles in registers serve both
            num_warps=min(8, max(1, heads_up * half_up // 512)),
        )
