"""Packed causal attention on the GPU: online softmax forward, and a backward in two passes without atomics.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width
         M query rows and N key rows of a tile

Source: FlashAttention-2 (Dao 2023), algorithms 1 and 2. We differ: dQ and dK/dV have a program each, which reads its
operands once more and needs no atomic sum, and tiles follow the packed sequences, so short ones are not padded.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.attention.tiles import TILE_ROWS, AttentionTiles
from cohort.kernels.backend import on_device_of

__all__ = ["attention_backward", "attention_forward"]

# Rows of a tile, warps and pipeline stages of the three passes: the best of those tried on an H200 for sequences of 100
# to 512 rows at head width 128 (benchmarks/kernels/attention.py --variants). They are fixed, so that a
# sequence's bits do not depend on its neighbours.
FORWARD = {"rows": TILE_ROWS, "columns": 64, "num_warps": 4, "num_stages": 3}
QUERY_GRADIENT = {"rows": TILE_ROWS, "columns": 64, "num_warps": 4, "num_stages": 2}
KEY_GRADIENT = {"rows": 32, "columns": TILE_ROWS, "num_warps": 4, "num_stages": 3}
DELTA_ROWS = 32
LOG2_E = math.log2(math.e)


@triton.jit
def _load_rows(pointer, rows, stride, e, valid, WIDTH: tl.constexpr):
    places = rows.to(tl.int64)[:, None] * stride + e[None, :]
    return tl.load(pointer + places, mask=valid[:, None] & (e < WIDTH)[None, :], other=0.0)


@triton.jit
def _visible(rows, columns, stop, WINDOW: tl.constexpr):
    seen = (columns <= rows) & (columns < stop)
    if WINDOW > 0:
        seen = seen & (columns > rows - WINDOW)
    return seen


@triton.jit(do_not_specialize=["num_rows"])
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    tiles_ptr,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    o_row,
    scale,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(tiles_ptr + 3 * tile)
    stop = tl.load(tiles_ptr + 3 * tile + 1)
    first = tl.load(tiles_ptr + 3 * tile + 2)
    rows, e = first + tl.arange(0, M), tl.arange(0, WIDTH_UP)
    valid = rows < stop
    q = _load_rows(q_ptr + head * q_head, rows, q_row, e, valid, WIDTH)
    k_ptr += (head // GROUP) * k_head
    v_ptr += (head // GROUP) * v_head
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    o = tl.zeros([M, WIDTH_UP], tl.float32)
    begin = start
    if WINDOW > 0:
        begin = tl.maximum(start, first - WINDOW + 1)
    for column in range(begin, tl.minimum(first + M, stop), N):
        columns = column + tl.arange(0, N)
        k = _load_rows(k_ptr, columns, k_row, e, columns < stop, WIDTH)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(_visible(rows[:, None], columns[None, :], stop, WINDOW), scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # with a window a block may hold nothing that a row sees: exp2(-inf - -inf) would be NaN
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(largest - shift)
        total = total * fade + tl.sum(weights, 1)
        v = _load_rows(v_ptr, columns, v_row, e, columns < stop, WIDTH)
        o = o * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = larger
    # rows past the sequence's end may see nothing under a window; they are not stored
    total = tl.where(total == 0.0, 1.0, total)
    o = o / total[:, None]
    places = (rows.to(tl.int64) * o_row + head * WIDTH)[:, None] + e[None, :]
    tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=valid[:, None] & (e < WIDTH)[None, :])
    tl.store(lse_ptr + head.to(tl.int64) * num_rows + rows, largest + tl.log2(total), mask=valid)


@triton.jit(do_not_specialize=["num_rows"])
def _delta_kernel(
    o_ptr,
    do_ptr,
    delta_ptr,
    num_rows,
    o_row,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    M: tl.constexpr,
):
    rows, head, e = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1), tl.arange(0, WIDTH_UP)
    valid = rows < num_rows
    o = _load_rows(o_ptr + head * WIDTH, rows, o_row, e, valid, WIDTH).to(tl.float32)
    do = _load_rows(do_ptr + head * WIDTH, rows, HEADS * WIDTH, e, valid, WIDTH).to(tl.float32)
    tl.store(delta_ptr + head.to(tl.int64) * num_rows + rows, tl.sum(o * do, 1), mask=valid)


@triton.jit(do_not_specialize=["num_rows"])
def _query_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    tiles_ptr,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    scale,
    unscale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(tiles_ptr + 3 * tile)
    stop = tl.load(tiles_ptr + 3 * tile + 1)
    first = tl.load(tiles_ptr + 3 * tile + 2)
    rows, e = first + tl.arange(0, M), tl.arange(0, WIDTH_UP)
    valid = rows < stop
    q = _load_rows(q_ptr + head * q_head, rows, q_row, e, valid, WIDTH)
    do = _load_rows(do_ptr + head * WIDTH, rows, HEADS * WIDTH, e, valid, WIDTH)
    sums = head.to(tl.int64) * num_rows + rows
    lse = tl.load(lse_ptr + sums, mask=valid, other=0.0)
    delta = tl.load(delta_ptr + sums, mask=valid, other=0.0)
    k_ptr += (head // GROUP) * k_head
    v_ptr += (head // GROUP) * v_head
    dq = tl.zeros([M, WIDTH_UP], tl.float32)
    begin = start
    if WINDOW > 0:
        begin = tl.maximum(start, first - WINDOW + 1)
    for column in range(begin, tl.minimum(first + M, stop), N):
        columns = column + tl.arange(0, N)
        k = _load_rows(k_ptr, columns, k_row, e, columns < stop, WIDTH)
        v = _load_rows(v_ptr, columns, v_row, e, columns < stop, WIDTH)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = _visible(rows[:, None], columns[None, :], stop, WINDOW) & valid[:, None]
        weights = tl.where(seen, tl.exp2(scores - lse[:, None]), 0.0)
        dweights = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        dscores = weights * (dweights - delta[:, None])
        dq += tl.dot(dscores.to(k.dtype), k, input_precision=PRECISION)
    places = (rows.to(tl.int64) * HEADS + head)[:, None] * WIDTH + e[None, :]
    tl.store(dq_ptr + places, (dq * unscale).to(dq_ptr.dtype.element_ty), mask=valid[:, None] & (e < WIDTH)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _key_gradient_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    tiles_ptr,
    num_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    scale,
    unscale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    stop = tl.load(tiles_ptr + 3 * tile + 1)
    first = tl.load(tiles_ptr + 3 * tile + 2)
    columns, e = first + tl.arange(0, N), tl.arange(0, WIDTH_UP)
    valid = columns < stop
    k = _load_rows(k_ptr + kv_head * k_head, columns, k_row, e, valid, WIDTH)
    v = _load_rows(v_ptr + kv_head * v_head, columns, v_row, e, valid, WIDTH)
    dk = tl.zeros([N, WIDTH_UP], tl.float32)
    dv = tl.zeros([N, WIDTH_UP], tl.float32)
    end = stop
    if WINDOW > 0:
        end = tl.minimum(stop, first + N - 1 + WINDOW)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        for row in range(first, end, M):
            rows = row + tl.arange(0, M)
            real = rows < stop
            q = _load_rows(q_ptr + head * q_head, rows, q_row, e, real, WIDTH)
            do = _load_rows(do_ptr + head * WIDTH, rows, HEADS * WIDTH, e, real, WIDTH)
            sums = head.to(tl.int64) * num_rows + rows
            lse = tl.load(lse_ptr + sums, mask=real, other=0.0)
            delta = tl.load(delta_ptr + sums, mask=real, other=0.0)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
            seen = _visible(rows[None, :], columns[:, None], stop, WINDOW) & real[None, :]
            weights = tl.where(seen, tl.exp2(scores - lse[None, :]), 0.0)
            dv += tl.dot(weights.to(do.dtype), do, input_precision=PRECISION)
            dweights = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            dscores = weights * (dweights - delta[None, :])
            dk += tl.dot(dscores.to(q.dtype), q, input_precision=PRECISION)
    places = (columns.to(tl.int64) * (HEADS // GROUP) + kv_head)[:, None] * WIDTH + e[None, :]
    mask = valid[:, None] & (e < WIDTH)[None, :]
    tl.store(dk_ptr + places, (dk * unscale).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + places, dv.to(dv_ptr.dtype.element_ty), mask=mask)


def attention_forward(
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    *,
    tiles: AttentionTiles,
    window: int | None,
    o_THE: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return o [T, H, E] and the logarithm to base 2 of each row's softmax sum [H, T].

    ``o_THE`` is written where it is given; the rows may lie apart, a row's heads may not.
    """
    q_THE, k_TGE, v_TGE = (_unit_stride(x) for x in (q_THE, k_TGE, v_TGE))
    num_rows, num_heads, width = q_THE.shape
    if o_THE is None:
        o_THE = torch.empty((num_rows, num_heads, width), dtype=q_THE.dtype, device=q_THE.device)
    lse_HT = torch.empty((num_heads, num_rows), dtype=torch.float32, device=q_THE.device)
    o_THE[tiles.num_used :] = 0
    lse_HT[:, tiles.num_used :] = 0
    table = tiles.table(FORWARD["rows"])
    if not len(table):
        return o_THE, lse_HT
    with on_device_of(q_THE):
        _forward_kernel[len(table), num_heads](
            q_THE,
            k_TGE,
            v_TGE,
            o_THE,
            lse_HT,
            table,
            num_rows,
            *_strides(q_THE, k_TGE, v_TGE),
            o_THE.stride(0),
            LOG2_E / math.sqrt(width),
            **_constants(q_THE, k_TGE, window=window, rows=FORWARD["rows"], columns=FORWARD["columns"]),
            num_warps=FORWARD["num_warps"],
            num_stages=FORWARD["num_stages"],
        )
    return o_THE, lse_HT


def attention_backward(
    do_THE: Tensor,
    *,
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    o_THE: Tensor,
    lse_HT: Tensor,
    tiles: AttentionTiles,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq [T, H, E], dk and dv [T, G, E]; zeros in rows of no sequence."""
    do_THE = do_THE.contiguous()
    q_THE, k_TGE, v_TGE = (_unit_stride(x) for x in (q_THE, k_TGE, v_TGE))
    num_rows, num_heads, width = q_THE.shape
    num_kv_heads = k_TGE.shape[1]
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_THE, k_TGE, v_TGE))
    for gradient in (dq, dk, dv):
        gradient[tiles.num_used :] = 0
    if not len(tiles.table(QUERY_GRADIENT["rows"])):
        return dq, dk, dv
    delta_HT = torch.empty_like(lse_HT)
    width_up = triton.next_power_of_2(width)
    strides = _strides(q_THE, k_TGE, v_TGE)
    scales = (LOG2_E / math.sqrt(width), 1 / math.sqrt(width))
    with on_device_of(q_THE):
        _delta_kernel[triton.cdiv(num_rows, DELTA_ROWS), num_heads](
            o_THE, do_THE, delta_HT, num_rows, o_THE.stride(0), HEADS=num_heads, WIDTH=width, WIDTH_UP=width_up,
            M=DELTA_ROWS,
        )  # fmt: skip
        for kernel, settings, gradients, heads, side in (
            (_query_gradient_kernel, QUERY_GRADIENT, (dq,), num_heads, "rows"),
            (_key_gradient_kernel, KEY_GRADIENT, (dk, dv), num_kv_heads, "columns"),
        ):
            table = tiles.table(settings[side])
            kernel[len(table), heads](
                q_THE,
                k_TGE,
                v_TGE,
                do_THE,
                lse_HT,
                delta_HT,
                *gradients,
                table,
                num_rows,
                *strides,
                *scales,
                HEADS=num_heads,
                **_constants(q_THE, k_TGE, window=window, rows=settings["rows"], columns=settings["columns"]),
                num_warps=settings["num_warps"],
                num_stages=settings["num_stages"],
            )
    return dq, dk, dv


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _constants(q_THE: Tensor, k_TGE: Tensor, *, window: int | None, rows: int, columns: int) -> dict[str, object]:
    num_heads, width = q_THE.shape[1:]
    return {
        "GROUP": num_heads // k_TGE.shape[1],
        "WIDTH": width,
        "WIDTH_UP": max(16, triton.next_power_of_2(width)),
        "M": rows,
        "N": columns,
        "WINDOW": window or 0,
        # float32 is for checks and small models: exact products, not TF32's ten bits
        "PRECISION": "ieee" if q_THE.dtype == torch.float32 else "tf32",
    }
