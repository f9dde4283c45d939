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
from cohort.kernels.fp8_product import CodeRoom
from cohort.kernels.rope.rounding import round_row

__all__ = ["fused_backward", "fused_forward", "rope_backward", "rope_forward"]


@triton.jit
def _rotate_heads(
    x_ptr,
    term_ptr,
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
    HAS_TERM: tl.constexpr,
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, HALF_UP)[None, :]
    mask = (heads < HEADS) & (columns < HALF)
    x_first = tl.load(x_ptr + heads * x_head_stride + columns, mask=mask, other=0.0).to(tl.float32)
    x_second = tl.load(x_ptr + heads * x_head_stride + HALF + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_TERM:
        # heads of a term lie one after the other; the sum is rounded as it would be in memory
        terms = term_ptr + heads * 2 * HALF + columns
        x_first += tl.load(terms, mask=mask, other=0.0)
        x_second += tl.load(terms + HALF, mask=mask, other=0.0)
        x_first = x_first.to(x_ptr.dtype.element_ty).to(tl.float32)
        x_second = x_second.to(x_ptr.dtype.element_ty).to(tl.float32)
    if BACKWARD:  # the transpose of the rotation
        y_first = x_first * cos_first + x_second * sin_second
        y_second = x_second * cos_second - x_first * sin_first
    else:
        y_first = x_first * cos_first - x_second * sin_first
        y_second = x_second * cos_second + x_first * sin_second
    y_first, y_second = y_first.to(y_ptr.dtype.element_ty), y_second.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + heads * y_head_stride + columns, y_first, mask=mask)
    tl.store(y_ptr + heads * y_head_stride + HALF + columns, y_second, mask=mask)
    return y_first, y_second


@triton.jit
def _copy_heads(
    x_ptr,
    term_ptr,
    y_ptr,
    x_head_stride,
    y_head_stride,
    HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    HAS_TERM: tl.constexpr,
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, WIDTH_UP)[None, :]
    mask = (heads < HEADS) & (columns < WIDTH)
    x = tl.load(x_ptr + heads * x_head_stride + columns, mask=mask)
    if HAS_TERM:
        term = tl.load(term_ptr + heads * WIDTH + columns, mask=mask, other=0.0)
        x = (x.to(tl.float32) + term).to(x_ptr.dtype.element_ty)
    tl.store(y_ptr + heads * y_head_stride + columns, x, mask)
    return x


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    term_ptr,
    cos_ptr,
    sin_ptr,
    factors_ptr,
    codes_ptr,
    scales_ptr,
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
    HAS_TERM: tl.constexpr,
    HAS_CODES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    term_ptr += token * (Q_HEADS + 2 * K_HEADS) * 2 * HALF
    columns = tl.arange(0, HALF_UP)
    mask = columns < HALF
    cos_ptr += token * angle_token_stride
    sin_ptr += token * angle_token_stride
    cos_first = tl.load(cos_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin_ptr + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)[None, :]
    q_first, q_second = _rotate_heads(
        q_ptr + token * q_token_stride,
        term_ptr,
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
        HAS_TERM,
    )
    k_first, k_second = _rotate_heads(
        k_ptr + token * k_token_stride,
        term_ptr + Q_HEADS * 2 * HALF,
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
        HAS_TERM,
    )
    if COPIES_V:
        v = _copy_heads(
            v_ptr + token * v_token_stride,
            term_ptr + (Q_HEADS + K_HEADS) * 2 * HALF,
            v_out_ptr + token * v_out_token_stride,
            v_head_stride,
            v_out_head_stride,
            K_HEADS,
            K_HEADS_UP,
            2 * HALF,
            2 * HALF_UP,
            HAS_TERM,
        )
        if HAS_CODES:
            round_row(
                q_first,
                q_second,
                k_first,
                k_second,
                v,
                factors_ptr,
                codes_ptr + token * (Q_HEADS + 2 * K_HEADS) * 2 * HALF,
                scales_ptr + token,
                Q_HEADS,
                Q_HEADS_UP,
                K_HEADS,
                K_HEADS_UP,
                HALF,
                HALF_UP,
            )


def rope_forward(q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, rotated, contiguous."""
    return _rotated(q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=False)


def fused_forward(
    qkv_TN: Tensor, *, heads: tuple[int, int], cos_TE: Tensor, sin_TE: Tensor, term_TN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys of ``qkv + term``, rotated, and values; all contiguous."""
    parts = qkv_TN.unflatten(1, (-1, cos_TE.shape[1])).split((heads[0], heads[1], heads[1]), dim=1)
    q, k, v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in parts)
    _launch(
        parts[0], parts[1], q, k, cos_TE=cos_TE, sin_TE=sin_TE, backward=False, copied=(parts[2], v), term_TN=term_TN
    )
    return q, k, v


def rope_backward(dq_THE: Tensor, dk_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the unrotated queries and keys, contiguous."""
    return _rotated(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE, backward=True)


def fused_backward(
    dq_THE: Tensor, dk_TGE: Tensor, dv_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, room: CodeRoom | None = None
) -> Tensor:
    """Return the gradient of the fused product [T, (H + 2 G) E]: both rotated back, and dv next to them.

    Its codes go into ``room``.
    """
    (num_rows, num_heads, width), num_kv_heads = dq_THE.shape, dk_TGE.shape[1]
    fused_TN = torch.empty(num_rows, (num_heads + 2 * num_kv_heads) * width, dtype=dq_THE.dtype, device=dq_THE.device)
    q_out, k_out, v_out = fused_TN.unflatten(1, (-1, width)).split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    dv = _with_dense_heads(dv_TGE)
    _launch(dq_THE, dk_TGE, q_out, k_out, cos_TE=cos_TE, sin_TE=sin_TE, backward=True, copied=(dv, v_out), room=room)
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
    term_TN: Tensor | None = None,
    room: CodeRoom | None = None,
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
            q if term_TN is None else term_TN,
            cos_TE.contiguous(),
            sin_TE.contiguous(),
            *((q, q, q) if room is None else (room.factors_N, room.rows.codes_TK, room.rows.scales_T)),
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
            HAS_TERM=term_TN is not None,
            HAS_CODES=room is not None,
            # two heads' worth of 16-byte loads per thread: the angles in registers serve both
            num_warps=min(8, max(1, heads_up * half_up // 512)),
        )


def _with_dense_heads(x_THE: Tensor) -> Tensor:
    return x_THE if x_THE.stride(2) == 1 else x_THE.contiguous()
