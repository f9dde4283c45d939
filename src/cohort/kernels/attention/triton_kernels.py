"""The four kernels of packed attention: forward, the sums that the gradients share, dQ, and dK with dV.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width
         M query rows and N key rows of a tile
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["delta_kernel", "forward_kernel", "key_gradient_kernel", "query_gradient_kernel"]


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
def forward_kernel(
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
def delta_kernel(
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
def query_gradient_kernel(
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
def key_gradient_kernel(
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
