"""Forward kernels: shrink ``S = drop(X) A^T`` for all siblings in one read of X, expand ``Y (+)= s S B^T``.

A program reads its rows, rank rows, rank and scale from a table of :mod:`cohort.kernels.packed_linear.launch.tables`
and runs the body compiled for its own padded rank, so no bit of a slot's result depends on who else is in the launch.

Shapes:  T rows · K input width · N output width of one part · R rank rows of the bank · r true rank, BR its padded
class
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: SIM102
# a jitted function has no Python types: its operands are pointers and tiles; a constexpr and a run-time test stay
# two ifs

from __future__ import annotations

import triton
import triton.language as tl

from cohort.kernels.dropout.triton import keep_tile
from cohort.kernels.fp8_product.triton import inverse_of
from cohort.kernels.packed_linear.portable.augmented import spread_rows
from cohort.kernels.packed_linear.portable.rounding import put_scales, round_columns, round_tile
from cohort.kernels.packed_linear.portable.stages import arrives_last

__all__ = ["drop", "entry_fields", "expand_kernel", "in_class", "kept_columns", "shrink_kernel", "sum_partials_kernel"]


@triton.jit
def entry_fields(table, index):
    """Return (first row, row after the last, rank row, rank, scale, threshold, factor, partial) of entry ``index``."""
    # 8 is launch.tables.ENTRY_WIDTH; why it is written out: see kernels/dropout/triton.py
    entry = table + (index + 1) * 8
    scale = tl.load(entry + 4).to(tl.float32, bitcast=True)
    factor = tl.load(entry + 6).to(tl.float32, bitcast=True)
    return (
        tl.load(entry),
        tl.load(entry + 1),
        tl.load(entry + 2),
        tl.load(entry + 3),
        scale,
        tl.load(entry + 5),
        factor,
        tl.load(entry + 7),
    )


@triton.jit
def in_class(rank, CLASS: tl.constexpr):
    """Return whether a slot of ``rank`` runs the body compiled for the padded rank ``CLASS``; none for rank 0."""
    return (rank <= CLASS) & (rank > (CLASS // 2 if CLASS > 16 else 0))


@triton.jit
def kept_columns(rank):
    """Return how many columns of S a slot has: its rank rounded up to 16, zeros past the rank.

    A mask that ends at a multiple of 16 leaves loads 16 bytes wide; one that ends at the rank makes each element a load
    of its own, which no pipeline can bring in ahead.
    """
    return (rank + 15) // 16 * 16


@triton.jit
def drop(x, row_keys, features, module_key, threshold, factor):
    """Return ``x`` with dropped features zeroed and kept ones scaled, in the dtype of ``x``."""
    keep = keep_tile(row_keys, features, module_key, threshold)
    return tl.where(keep, x.to(tl.float32) * factor, 0.0).to(x.dtype)


@triton.jit
def _shrink_part(
    acc, x_tile, a, stride_ar, rank_rows, rank_ok, cols, col_ok, row_keys, module_key, threshold, factor,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    a_tile = tl.load(
        a + rank_rows[:, None] * stride_ar + cols[None, :], mask=rank_ok[:, None] & col_ok[None, :], other=0.0
    ).to(x_tile.dtype)
    if DROPOUT:
        x_tile = drop(x_tile, row_keys, cols, module_key, threshold, factor)
    return tl.dot(x_tile, tl.trans(a_tile), acc, input_precision=PRECISION)


@triton.jit
def _shrink_rows(
    x, a0, a1, a2, s, shares, counter, row_keys, key0, key1, key2, row_start, row_stop, rank_row, rank, scale,
    threshold, factor, k_begin, k_end, width, split, stride_xt, stride_a0, stride_a1, stride_a2, stride_part,
    stride_row, stride_share, stride_share_row, spare, flags, stride_spare, sizes, factors, codes, scales,
    stride_codes, writes_scales,
    PARTS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, SPLITS: tl.constexpr,
    EVEN: tl.constexpr, SCALED: tl.constexpr, SPREAD: tl.constexpr, FLAGS: tl.constexpr, FLAGS_UP: tl.constexpr,
    ROUNDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = row_start + tl.arange(0, BM)
    # Rows past the end read the slot's own last row, never a neighbour's, and are not stored: no mask in the loop.
    safe_rows = tl.minimum(rows, row_stop - 1).to(tl.int64)
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    rank_rows = (rank_row + ranks).to(tl.int64)
    keys = tl.load(row_keys + safe_rows) if DROPOUT else safe_rows
    if ROUNDS:
        found_scales = put_scales(sizes, scales, rows, rows < row_stop, writes_scales)
        inverses = inverse_of(found_scales)
    acc0 = tl.zeros((BM, BR), dtype=tl.float32)
    acc1 = tl.zeros((BM, BR), dtype=tl.float32)
    acc2 = tl.zeros((BM, BR), dtype=tl.float32)
    for k in range(k_begin, k_end, BK):
        cols = k + tl.arange(0, BK)
        col_ok = cols < width
        x_pointers = x + safe_rows[:, None] * stride_xt + cols[None, :]
        if EVEN:
            x_tile = tl.load(x_pointers)
            col_ok = cols >= 0
        else:
            x_tile = tl.load(x_pointers, mask=col_ok[None, :], other=0.0)
        if ROUNDS:
            round_tile(
                x_tile, factors, codes, stride_codes, found_scales, inverses, rows, rows < row_stop, cols, col_ok
            )
        acc0 = _shrink_part(acc0, x_tile, a0, stride_a0, rank_rows, rank_ok, cols, col_ok, keys, key0, threshold,
                            factor,
                            DROPOUT, PRECISION)  # fmt: skip
        if PARTS > 1:
            acc1 = _shrink_part(acc1, x_tile, a1, stride_a1, rank_rows, rank_ok, cols, col_ok, keys, key1, threshold,
                                factor, DROPOUT, PRECISION)  # fmt: skip
        if PARTS > 2:
            acc2 = _shrink_part(acc2, x_tile, a2, stride_a2, rank_rows, rank_ok, cols, col_ok, keys, key2, threshold,
                                factor, DROPOUT, PRECISION)  # fmt: skip
    row_ok = (rows < row_stop)[:, None]
    long_rows = rows.to(tl.int64)[:, None]
    s_tile = s + long_rows * stride_row + ranks[None, :]
    scaled = scale if SCALED else 1.0
    if SPLITS == 1:
        if SPREAD > 0:
            spread_rows(spare, flags, stride_spare, rows, rows < row_stop, acc0, rank_row, rank, scale, BM, BR, SPREAD,
                        FLAGS, FLAGS_UP)  # fmt: skip
        tl.store(s_tile, (acc0 * scaled).to(s.dtype.element_ty), mask=row_ok)
        if PARTS > 1:
            tl.store(s_tile + stride_part, (acc1 * scaled).to(s.dtype.element_ty), mask=row_ok)
        if PARTS > 2:
            tl.store(s_tile + 2 * stride_part, (acc2 * scaled).to(s.dtype.element_ty), mask=row_ok)
    else:
        shares += long_rows * stride_share_row + ranks[None, :]
        own = shares + split.to(tl.int64) * stride_share
        tl.store(own, acc0, mask=row_ok)
        if PARTS > 1:
            tl.store(own + SPLITS * stride_share, acc1, mask=row_ok)
        if PARTS > 2:
            tl.store(own + 2 * SPLITS * stride_share, acc2, mask=row_ok)
        if arrives_last(counter, SPLITS):
            for _part in tl.static_range(PARTS):
                total = tl.zeros((BM, BR), dtype=tl.float32)
                for _split in tl.static_range(SPLITS):
                    total += tl.load(shares, mask=row_ok, other=0.0, cache_modifier=".cg")
                    shares += stride_share
                if SPREAD > 0:
                    spread_rows(spare, flags, stride_spare, rows, rows < row_stop, total, rank_row, rank, scale, BM, BR,
                                SPREAD, FLAGS, FLAGS_UP)  # fmt: skip
                tl.store(s_tile, (total * scaled).to(s.dtype.element_ty), mask=row_ok)
                s_tile += stride_part


@triton.jit(do_not_specialize=["key0", "key1", "key2"])
def shrink_kernel(
    table, x, a0, a1, a2, s, shares, counters, row_keys, key0, key1, key2, start0, start1, start2, width0, width1,
    width2, stride_xt, stride_a0, stride_a1, stride_a2, stride_part, stride_row, stride_share, stride_share_row, spare,
    flags, stride_spare, sizes, factors, codes, scales, stride_codes,
    PARTS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr, MAX_R: tl.constexpr,
    EVEN: tl.constexpr, APART: tl.constexpr, SCALED: tl.constexpr, SPREAD: tl.constexpr, FLAGS: tl.constexpr,
    FLAGS_UP: tl.constexpr, ROUNDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, SPLITS). Write ``S_p = (s) drop_p(X) A_p^T`` of each part p. SPREAD > 0 also spreads S of the one
    part there is over that many columns behind X. ROUNDS also writes the e4m3 codes of X, whose sizes are known.

    With SPLITS each program takes a share of K and leaves it in ``shares`` [PARTS * SPLITS, T, columns], float32 and
    part-major; the last of a tile adds them up. All parts read the same columns of X; APART, grid (tiles, SPLITS,
    parts), each reads its own ``start_p .. start_p + width_p``.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    if tile >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, scale, threshold, factor, _ = entry_fields(table, tile)
    width = width0
    writes_scales = split == 0
    if APART:
        part = tl.program_id(2)
        writes_scales = writes_scales & (part == 0)
        start, stride = start0, stride_a0
        a = a0
        if part == 1:
            a, start, width, stride = a1, start1, width1, stride_a1
        if part == 2:
            a, start, width, stride = a2, start2, width2, stride_a2
        x += start
        if ROUNDS:
            codes += start
            factors += start
        a0 = a
        stride_a0 = stride
        s += part.to(tl.int64) * stride_part
        shares += part.to(tl.int64) * SPLITS * stride_share
        counters += part * tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(width, BK), SPLITS) * BK
    shared_parts: tl.constexpr = 1 if APART else PARTS
    k_begin = split * share
    k_end = tl.minimum(k_begin + share, width)
    for SHIFT in tl.static_range(4):
        if (16 << SHIFT) <= MAX_R:
            if in_class(rank, 16 << SHIFT):
                _shrink_rows(
                    x, a0, a1, a2, s, shares, counters + tile, row_keys, key0, key1, key2, row_start, row_stop,
                    rank_row, rank, scale, threshold, factor, k_begin, k_end, width, split, stride_xt, stride_a0,
                    stride_a1, stride_a2, stride_part, stride_row, stride_share, stride_share_row, spare, flags,
                    stride_spare, sizes, factors, codes, scales, stride_codes, writes_scales, shared_parts, BM, BK,
                    16 << SHIFT, SPLITS, EVEN, SCALED, SPREAD, FLAGS, FLAGS_UP, ROUNDS, DROPOUT, PRECISION,
                )  # fmt: skip
    if ROUNDS:
        if rank == 0:
            round_columns(x, sizes, factors, codes, scales, stride_xt, stride_codes, row_start, row_stop, k_begin,
                          k_end, width, writes_scales, BM, 128)  # fmt: skip
    if SPREAD > 0:
        if (rank == 0) & (split == 0):
            rows = row_start + tl.arange(0, BM)
            spread_rows(spare, flags, stride_spare, rows, rows < row_stop, tl.zeros((BM, 16), dtype=tl.float32),
                        rank_row, rank, scale, BM, 16, SPREAD, FLAGS, FLAGS_UP)  # fmt: skip


@triton.jit(do_not_specialize=["count0", "count1", "count2"])
def sum_partials_kernel(
    table, partials, out, count0, count1, count2, stride_partial, stride_partial_row, stride_part, stride_row, spare,
    flags, stride_spare,
    PARTS: tl.constexpr, ROWS: tl.constexpr, MAX_R: tl.constexpr, SCALED: tl.constexpr, SPREAD: tl.constexpr,
    FLAGS: tl.constexpr, FLAGS_UP: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, PARTS, rows of a tile / ROWS). ``out[p] = (s *) sum over p's partials``, always in their order.
    SPREAD > 0 also spreads the sum of the one part there is over that many columns behind X.
    """
    tile = tl.program_id(0)
    part = tl.program_id(1)
    if tile >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, scale, _, _, _ = entry_fields(table, tile)
    rows = row_start + tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    ranks = tl.arange(0, MAX_R)
    ok = (rows < row_stop)[:, None] & (ranks < rank)[None, :]
    kept = (rows < row_stop)[:, None] & (ranks < kept_columns(rank))[None, :]
    first = part * 0
    count = count0
    if PARTS > 1:
        if part == 1:
            first = count0
            count = count1
    if PARTS > 2:
        if part == 2:
            first = count0 + count1
            count = count2
    long_rows = rows.to(tl.int64)[:, None]
    total = tl.zeros((ROWS, MAX_R), dtype=tl.float32)
    pointers = partials + first.to(tl.int64) * stride_partial + long_rows * stride_partial_row + ranks[None, :]
    for _index in tl.range(0, count, loop_unroll_factor=4):
        total += tl.load(pointers, mask=ok, other=0.0)
        pointers += stride_partial
    if SPREAD > 0:
        spread_rows(spare, flags, stride_spare, rows, rows < row_stop, total, rank_row, rank, scale, ROWS, MAX_R,
                    SPREAD, FLAGS, FLAGS_UP)  # fmt: skip
    if SCALED:
        total = total * scale
    out += part.to(tl.int64) * stride_part
    tl.store(out + long_rows * stride_row + ranks[None, :], total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _expand_strip(
    y, s, b, rows, row_stop, first_col, stop_col, rank_row, rank, scale, stride_yt, stride_row, stride_br,
    BN: tl.constexpr, BR: tl.constexpr, ADD: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    row_ok = rows < row_stop
    long_rows = rows.to(tl.int64)
    s_ok = row_ok[:, None] & (ranks < kept_columns(rank))[None, :]
    s_tile = tl.load(s + long_rows[:, None] * stride_row + ranks[None, :], mask=s_ok, other=0.0)
    b_rows = b + (rank_row + ranks).to(tl.int64)[:, None] * stride_br
    y_rows = y + long_rows[:, None] * stride_yt
    # S stays in registers while the next columns of B are on their way
    for col in tl.range(first_col, stop_col, BN, num_stages=STAGES):
        cols = col + tl.arange(0, BN)
        col_ok = cols < stop_col
        b_tile = tl.load(b_rows + cols[None, :], mask=rank_ok[:, None] & col_ok[None, :], other=0.0).to(s_tile.dtype)
        added = tl.dot(s_tile, b_tile, input_precision=PRECISION) * scale
        ok = row_ok[:, None] & col_ok[None, :]
        if ADD:
            added += tl.load(y_rows + cols[None, :], mask=ok, other=0.0).to(tl.float32)
        tl.store(y_rows + cols[None, :], added.to(y.dtype.element_ty), mask=ok)


@triton.jit
def expand_kernel(
    table, s, b0, b1, b2, y, start0, start1, start2, width0, width1, width2,
    stride_yt, stride_part, stride_row, stride_b0, stride_b1, stride_b2,
    PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STRIP: tl.constexpr, MAX_R: tl.constexpr,
    ADD: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (strips of columns of all parts, tiles). ``Y[:, columns of p] (+)= s S_p B_p^T``; without ADD other rows get
    0.
    """
    tile = tl.program_id(1)
    if tile >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, scale, _, _, _ = entry_fields(table, tile)
    block = tl.program_id(0)
    b, stride_br, start, width = b0, stride_b0, start0, width0
    if PARTS > 1:
        before = tl.cdiv(width0, STRIP)
        if block >= before:
            block -= before
            b, stride_br, start, width = b1, stride_b1, start1, width1
            s += stride_part
            if PARTS > 2:
                before = tl.cdiv(width1, STRIP)
                if block >= before:
                    block -= before
                    b, stride_br, start, width = b2, stride_b2, start2, width2
                    s += stride_part
    rows = row_start + tl.arange(0, BM)
    first_col = block * STRIP
    stop_col = tl.minimum(first_col + STRIP, width)
    y += start
    for SHIFT in tl.static_range(4):
        if (16 << SHIFT) <= MAX_R:
            if in_class(rank, 16 << SHIFT):
                _expand_strip(y, s, b, rows, row_stop, first_col, stop_col, rank_row, rank, scale, stride_yt,
                              stride_row, stride_br, BN, 16 << SHIFT, ADD, STAGES, PRECISION)  # fmt: skip
    if not ADD:
        if rank == 0:
            zeros = tl.zeros((BM, BN), dtype=y.dtype.element_ty)
            for col in range(first_col, stop_col, BN):
                cols = col + tl.arange(0, BN)
                ok = (rows < row_stop)[:, None] & (cols < stop_col)[None, :]
                tl.store(y + rows.to(tl.int64)[:, None] * stride_yt + cols[None, :], zeros, mask=ok)
