"""Rotary embedding on the GPU: queries and keys in one launch, angles read once per token.

Shapes:  T tokens · H query heads · G key-value heads · E head width
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of

__all__ = ["fused_backward", "rope_backward", "rope_forward"]


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
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, HALF_UP)[None, :]
    mask = (heads < HEADS) & (columns < HALF)
    x_first = tl.load(x_ptr + heads * x_head_stride + columns, mask=mask, other=0.0).to(tl.float32)
    x_second = tl.load(x_ptr + heads * x_head_stride + HALF + columns, mask=mask, other=0.0).to(tl.float32)
    if BACKWARD:  # the transpose of the rotation
        y_first = x_first * cos_first + x_second * sin_second
        y_second = x_second * cos_second - x_first * sin_first
    else:
        y_first = x_first * cos_first - x_second * sin_first
        y_second = x_second * cos_second + x_first * sin_second
    tl.store(y_ptr + heads * y_head_stride + columns, y_first.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + heads * y_head_stride + HALF + columns, y_second.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _copy_heads(
    x_ptr,
    y_ptr,
    x_head_stride,
    y_head_stride,
    HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, WIDTH_UP)[None, :]
    mask = (heads < HEADS) & (columns < WIDTH)
    tl.store(y_ptr + heads * y_head_stride + columns, tl.load(x_ptr + heads * x_head_stride + columns, mask=mask), mask)


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
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    q_out_token_stride,
    q_out_head_stride,
    k_out_token_stride,
    k_out_head_stride,
    v_out_token_stride,
    v_out_head_stride,
    angle_token_stride,
    Q_HEADS: tl.constexpr,
    Q_HEADS_UP: tl.constexpr,
    K_HEADS: tl.constexpr,
    K_HEADS_UP: tl.constexpr,
    HALF: tl.constexpr,
    HALF_UP: tl.constexpr,
    BACKWARD: tl.constexpr,
    COPIES_V: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, HALF_UP)
    mask = columns < HALF
    cos_ptr += token * angle_token_stride
    sin_ptr += token * angle_token_stride
    cos_first = tl.load(cos_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    _rotate_heads(
        q_ptr + token * q_token_stride,
        q_out_ptr + token * q_out_token_stride,
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
    )
    _rotate_heads(
        k_ptr + token * k_token_stride,
        k_out_ptr + token * k_out_token_stride,
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
    )
    if COPIES_V:
        _copy_heads(
            v_ptr + token * v_token_stride,
            v_out_ptr + token * v_out_token_stride,
            v_head_stride,
            v_out_head_stride,
            K_HEADS,
            K_HEADS_UP,
            2 * HALF,
            2 * HALF_UP,
        )


def rope_forward(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, rotated, contiguous."""
    return _rotated(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=False)


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys, contiguous."""
    return _rotated(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=True)


def fused_backward(dq_THE: Tensor, dk_TGE: Tensor, dv_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Return the gradient of the fused product [T, (H + 2 G) E]: both rotated back, and dv next to them."""
    (num_rows, num_heads, width), num_kv_heads = dq_THE.shape, dk_TGE.shape[1]
    fused_TN = torch.empty(num_rows, (num_heads + 2 * num_kv_heads) * width, dtype=dq_THE.dtype, device=dq_THE.device)
    q_out, k_out, v_out = fused_TN.unflatten(1, (-1, width)).split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    dv = _with_dense_heads(dv_TGE)
    _launch(dq_THE, dk_TGE, q_out, k_out, cos_TE=cos_TE, sin_TE=sin_TE, backward=True, copied=(dv, v_out))
    return fused_TN


def _rotated(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    # contiguous, whatever the strides of the operands
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_THE, k_TGE))
    _launch(q_THE, k_TGE, q_out, k_out, cos_TE=cos_TE, sin_TE=sin_TE, backward=backward)
    return q_out, k_out


def _launch(
    q_THE: Tensor,
    k_TGE: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    *,
    cos_TE: Tensor,
    sin_TE: Tensor,
    backward: bool,
    copied: tuple[Tensor, Tensor] | None = None,
) -> None:
    q, k = _with_dense_heads(q_THE), _with_dense_heads(k_TGE)
    v, v_out = copied or (k, k_out)
    num_rows, num_heads, width = q.shape
    if num_rows == 0:
        return
    heads_up, half_up = triton.next_power_of_2(num_heads), triton.next_power_of_2(width // 2)
    num_kv_heads = k.shape[1]
    with on_device_of(q):
        _rope_kernel[(num_rows,)](
            q,
            k,
            v,
            q_out,
            k_out,
            v_out,
            cos_TE.contiguous(),
            sin_TE.contiguous(),
            *(stride for x in (q, k, v, q_out, k_out, v_out) for stride in x.stride()[:2]),
            width,
            Q_HEADS=num_heads,
            Q_HEADS_UP=heads_up,
            K_HEADS=num_kv_heads,
            K_HEADS_UP=triton.next_power_of_2(num_kv_heads),
            HALF=width // 2,
            HALF_UP=half_up,
            BACKWARD=backward,
            COPIES_V=copied is not None,
            # two heads' worth of 16-byte loads per thread: the angles in registers serve both
            num_warps=min(8, max(1, heads_up * half_up // 512)),
        )


def _with_dense_heads(x_THE: Tensor) -> Tensor:
    return x_THE if x_THE.stride(2) == 1 else x_THE.contiguous()
