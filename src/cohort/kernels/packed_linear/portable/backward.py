"""Backward kernels: one read of dY gives dS and dB, one read of X gives dA while dX is written.

A program owns some columns and walks a chunk of its slot's rows: the weight gradient stays in its accumulators, so each
gradient entry has one writer (where a slot has several chunks, the last of them adds up what all left, in their order)
and no float is added atomically. dS of a row needs all columns: programs leave float32 partial sums that
``sum_partials_kernel`` adds up in column order.

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
from cohort.kernels.packed_linear.portable.forward import entry_fields, in_class, kept_columns
from cohort.kernels.packed_linear.portable.stages import chunks_done, own_part, put_gradient, sum_parts

__all__ = ["input_side_kernel", "output_side_kernel"]


@triton.jit
def _output_side_rows(
    dy, s, b, ds_partials, sink, parts, own, row_start, row_stop, rank_row, rank, scale, partial, cols, col_ok,
    part_start, stride_dyt, stride_row, stride_br, stride_sink, part_width,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, EVEN: tl.constexpr, WITH_DS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    s_ok = ranks < kept_columns(rank)
    rank_rows = (rank_row + ranks).to(tl.int64)
    b_tile = tl.load(
        b + rank_rows[:, None] * stride_br + cols[None, :], mask=rank_ok[:, None] & col_ok[None, :], other=0.0
    ).to(dy.dtype.element_ty)
    acc = tl.zeros((BN, BR), dtype=tl.float32)
    for row in range(row_start, row_stop, BM):
        rows = row + tl.arange(0, BM)
        row_ok = rows < row_stop
        # Rows past the end repeat the slot's own last row against a zero row of S: a neighbour's NaN is never read.
        safe_rows = tl.minimum(rows, row_stop - 1).to(tl.int64)
        dy_pointers = dy + safe_rows[:, None] * stride_dyt + cols[None, :]
        if EVEN:
            dy_tile = tl.load(dy_pointers)
        else:
            dy_tile = tl.load(dy_pointers, mask=col_ok[None, :], other=0.0)
        offsets = safe_rows[:, None] * stride_row + ranks[None, :]
        s_tile = tl.load(s + offsets, mask=row_ok[:, None] & s_ok[None, :], other=0.0)
        acc = tl.dot(tl.trans(dy_tile), s_tile, acc, input_precision=PRECISION)
        if WITH_DS:
            ds_tile = tl.dot(dy_tile, tl.trans(b_tile), input_precision=PRECISION)
            tl.store(ds_partials + offsets, ds_tile, mask=row_ok[:, None])
    put_gradient(acc * scale, sink, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, part_start,
                 stride_sink, part_width)  # fmt: skip


@triton.jit
def output_side_kernel(
    table, sums, counters, dy, s, b0, b1, b2, ds_partials, sink0, sink1, sink2, parts, start0, start1, start2,
    width0, width1, width2,
    stride_dyt, stride_part, stride_row, stride_ds, stride_b0, stride_b1, stride_b2, stride_g0, stride_g1, stride_g2,
    part_width,
    PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MAX_R: tl.constexpr, EVEN: tl.constexpr,
    WITH_DS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, column tiles of all parts). ``dB_p += s dY_p^T S_p``; partial sums of ``dY_p B_p`` into
    ds_partials.
    """
    chunk = tl.program_id(0)
    if chunk >= tl.load(table):
        return
    if not WITH_DS:
        # dS was just made from the first rows on: the last ones are still in the cache
        chunk = tl.load(table) - 1 - chunk
    row_start, row_stop, rank_row, rank, scale, _, _, partial = entry_fields(table, chunk)
    own = own_part(sums, partial, chunk)
    block = tl.program_id(1)
    ds_partials += block.to(tl.int64) * stride_ds
    b, stride_br, sink, stride_sink, start, width = b0, stride_b0, sink0, stride_g0, start0, width0
    part_start = width0 * 0
    if PARTS > 1:
        before = tl.cdiv(width0, BN)
        if block >= before:
            block -= before
            b, stride_br, sink, stride_sink, start, width = b1, stride_b1, sink1, stride_g1, start1, width1
            part_start = width0
            s += stride_part
            if PARTS > 2:
                before = tl.cdiv(width1, BN)
                if block >= before:
                    block -= before
                    b, stride_br, sink, stride_sink, start, width = b2, stride_b2, sink2, stride_g2, start2, width2
                    part_start = width0 + width1
                    s += stride_part
    cols = block * BN + tl.arange(0, BN)
    col_ok = cols < width
    for SHIFT in tl.static_range(4):
        if (16 << SHIFT) <= MAX_R:
            if in_class(rank, 16 << SHIFT):
                _output_side_rows(
                    dy + start, s, b, ds_partials, sink, parts, own, row_start, row_stop, rank_row, rank, scale,
                    partial, cols, col_ok, part_start, stride_dyt, stride_row, stride_br, stride_sink, part_width,
                    BM, BN, 16 << SHIFT, EVEN, WITH_DS, PRECISION,
                )  # fmt: skip
    if chunks_done(sums, counters, partial, tl.program_id(1), tl.num_programs(1)):
        sum_parts(sums, partial, sink, parts, cols, col_ok, part_start, stride_sink, part_width)


@triton.jit
def _input_side_part(
    acc, dx, x_tile, ds, a_tile, offsets, ok, keys, cols, module_key, threshold, factor,
    DROPOUT: tl.constexpr, WITH_DX: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    ds_tile = tl.load(ds + offsets, mask=ok, other=0.0)
    if DROPOUT:
        keep = keep_tile(keys, cols, module_key, threshold)
        x_tile = tl.where(keep, x_tile.to(tl.float32) * factor, 0.0).to(x_tile.dtype)
    acc = tl.dot(tl.trans(x_tile), ds_tile, acc, input_precision=PRECISION)
    if WITH_DX:
        if DROPOUT:
            dx += tl.where(keep, tl.dot(ds_tile, a_tile, input_precision=PRECISION) * factor, 0.0)
        elif EXACT:
            # as with dropout, whose factor is 1 for a slot that drops nothing: a neighbour's dropout changes no bit
            dx += tl.dot(ds_tile, a_tile, input_precision=PRECISION) * factor
        else:
            dx = tl.dot(ds_tile, a_tile, dx, input_precision=PRECISION)
    return acc, dx


@triton.jit
def _load_factor(a, rank_row, ranks, rank_ok, cols, col_ok, stride_ar, like: tl.constexpr):
    rank_rows = (rank_row + ranks).to(tl.int64)
    ok = rank_ok[:, None] & col_ok[None, :]
    return tl.load(a + rank_rows[:, None] * stride_ar + cols[None, :], mask=ok, other=0.0).to(like)


@triton.jit
def _input_side_rows(
    x, ds, a0, a1, a2, dx, sink0, sink1, sink2, parts, own, row_keys, key0, key1, key2, row_start, row_stop, rank_row,
    rank, threshold, factor, partial, cols, col_ok, width, stride_xt, stride_dxt, stride_part, stride_row,
    stride_a0, stride_a1, stride_a2, stride_g0, stride_g1, stride_g2, part_width,
    PARTS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    WITH_DX: tl.constexpr, DROPOUT: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    like: tl.constexpr = x.dtype.element_ty
    a0_tile = _load_factor(a0, rank_row, ranks, rank_ok, cols, col_ok, stride_a0, like)
    a1_tile = _load_factor(a1, rank_row, ranks, rank_ok, cols, col_ok, stride_a1, like) if PARTS > 1 else a0_tile
    a2_tile = _load_factor(a2, rank_row, ranks, rank_ok, cols, col_ok, stride_a2, like) if PARTS > 2 else a0_tile
    acc0 = tl.zeros((BK, BR), dtype=tl.float32)
    acc1 = tl.zeros((BK, BR), dtype=tl.float32)
    acc2 = tl.zeros((BK, BR), dtype=tl.float32)
    for row in range(row_start, row_stop, BM):
        rows = row + tl.arange(0, BM)
        row_ok = rows < row_stop
        safe_rows = tl.minimum(rows, row_stop - 1).to(tl.int64)
        x_pointers = x + safe_rows[:, None] * stride_xt + cols[None, :]
        if EVEN:
            x_tile = tl.load(x_pointers)
        else:
            x_tile = tl.load(x_pointers, mask=col_ok[None, :], other=0.0)
        keys = tl.load(row_keys + safe_rows) if DROPOUT else safe_rows
        offsets = safe_rows[:, None] * stride_row + ranks[None, :]
        ok = row_ok[:, None] & (ranks < kept_columns(rank))[None, :]
        dx_tile = tl.zeros((BM, BK), dtype=tl.float32)
        acc0, dx_tile = _input_side_part(acc0, dx_tile, x_tile, ds, a0_tile, offsets, ok, keys, cols, key0, threshold,
                                         factor, DROPOUT, WITH_DX, EXACT, PRECISION)  # fmt: skip
        if PARTS > 1:
            acc1, dx_tile = _input_side_part(acc1, dx_tile, x_tile, ds + stride_part, a1_tile, offsets, ok, keys,
                                             cols, key1,
                                             threshold, factor, DROPOUT, WITH_DX, EXACT, PRECISION)  # fmt: skip
        if PARTS > 2:
            acc2, dx_tile = _input_side_part(acc2, dx_tile, x_tile, ds + 2 * stride_part, a2_tile, offsets, ok, keys,
                                             cols,
                                             key2, threshold, factor, DROPOUT, WITH_DX, EXACT, PRECISION)  # fmt: skip
        if WITH_DX:
            dx_pointers = dx + rows.to(tl.int64)[:, None] * stride_dxt + cols[None, :]
            dx_ok = row_ok[:, None] & col_ok[None, :]
            if ADD:
                dx_tile += tl.load(dx_pointers, mask=dx_ok, other=0.0).to(tl.float32)
            tl.store(dx_pointers, dx_tile.to(dx.dtype.element_ty), mask=dx_ok)
    put_gradient(acc0, sink0, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, width * 0,
                 stride_g0, part_width)  # fmt: skip
    if PARTS > 1:
        put_gradient(acc1, sink1, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, width,
                     stride_g1, part_width)  # fmt: skip
    if PARTS > 2:
        put_gradient(acc2, sink2, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, width * 2,
                     stride_g2, part_width)  # fmt: skip


@triton.jit(do_not_specialize=["key0", "key1", "key2"])
def input_side_kernel(
    table, sums, counters, x, ds, a0, a1, a2, dx, sink0, sink1, sink2, parts, row_keys, key0, key1, key2,
    width, stride_xt, stride_dxt, stride_part, stride_row, stride_a0, stride_a1, stride_a2,
    stride_g0, stride_g1, stride_g2, part_width,
    PARTS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, MAX_R: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    WITH_DX: tl.constexpr, DROPOUT: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, column tiles). ``dA_p += dS_p^T drop_p(X)`` and ``dX (+)= sum_p drop_p(dS_p A_p)``.

    Without ADD, dX of rows of no adapter becomes 0.
    """
    chunk = tl.program_id(0)
    if chunk >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, _, threshold, factor, partial = entry_fields(table, chunk)
    own = own_part(sums, partial, chunk)
    cols = tl.program_id(1) * BK + tl.arange(0, BK)
    col_ok = cols < width
    for SHIFT in tl.static_range(4):
        if (16 << SHIFT) <= MAX_R:
            if in_class(rank, 16 << SHIFT):
                _input_side_rows(
                    x, ds, a0, a1, a2, dx, sink0, sink1, sink2, parts, own, row_keys, key0, key1, key2, row_start,
                    row_stop, rank_row, rank, threshold, factor, partial, cols, col_ok, width, stride_xt, stride_dxt,
                    stride_part, stride_row, stride_a0, stride_a1, stride_a2, stride_g0, stride_g1, stride_g2,
                    part_width, PARTS, BM, BK, 16 << SHIFT, EVEN, ADD, WITH_DX, DROPOUT, EXACT,
                    PRECISION,
                )  # fmt: skip
    if chunks_done(sums, counters, partial, tl.program_id(1), tl.num_programs(1)):
        sum_parts(sums, partial, sink0, parts, cols, col_ok, width * 0, stride_g0, part_width)
        if PARTS > 1:
            sum_parts(sums, partial, sink1, parts, cols, col_ok, width, stride_g1, part_width)
        if PARTS > 2:
            sum_parts(sums, partial, sink2, parts, cols, col_ok, width * 2, stride_g2, part_width)
    if WITH_DX and not ADD:
        if rank == 0:
            zeros = tl.zeros((BM, BK), dtype=dx.dtype.element_ty)
            for row in range(row_start, row_stop, BM):
                rows = row + tl.arange(0, BM)
                ok = (rows < row_stop)[:, None] & col_ok[None, :]
                tl.store(dx + rows.to(tl.int64)[:, None] * stride_dxt + cols[None, :], zeros, mask=ok)
