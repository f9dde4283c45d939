"""The two passes over the feed-forward width: activation with the down shrink, and every gradient between D and dX.

Both read the frozen gate-and-up product G once and keep what LoRA adds to it in registers. A launch serves the slots of
one padded rank; a program reads its rows, rank rows, rank and scale from a table of
:mod:`cohort.kernels.packed_linear.launch.tables`.

Shapes:  T rows · F feed-forward width, G is [T, 2F] · R rank rows of the bank · r true rank, BR its padded class
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: SIM102
# a jitted function has no Python types: its operands are pointers and tiles; a constexpr and a run-time test stay
# two ifs

from __future__ import annotations

import triton
import triton.language as tl

from cohort.kernels.dropout.triton import keep_tile
from cohort.kernels.fp8_product.triton import put_sizes
from cohort.kernels.packed_linear.portable.forward import drop, entry_fields, in_class, kept_columns
from cohort.kernels.packed_linear.portable.stages import chunks_done, own_part, put_gradient, sum_parts

__all__ = ["activate_kernel", "gradient_kernel"]


@triton.jit
def _load_columns(pointers, col_ok, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=col_ok[None, :], other=0.0)


@triton.jit
def _load_factor(factor, rank_rows, rank_ok, cols, col_ok, stride, like: tl.constexpr):
    ok = rank_ok[:, None] & col_ok[None, :]
    return tl.load(factor + rank_rows[:, None] * stride + cols[None, :], mask=ok, other=0.0).to(like)


@triton.jit
def _activate_rows(
    g, s, b_gate, b_up, a_down, act, s_partials, row_keys, key, row_start, row_stop, rank_row, rank, scale, threshold,
    factor, first_col, width, stride_gt, stride_part, stride_row, stride_b_gate, stride_b_up, stride_a, stride_act,
    stride_partial_row,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, STRIP: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, LORA: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    like: tl.constexpr = g.dtype.element_ty
    rows = row_start + tl.arange(0, BM)
    row_ok = (rows < row_stop)[:, None]
    # Rows past the end read the slot's own last row, never a neighbour's, and are not stored.
    safe_rows = tl.minimum(rows, row_stop - 1).to(tl.int64)
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    rank_rows = (rank_row + ranks).to(tl.int64)
    acc = tl.zeros((BM, BR), dtype=tl.float32)
    keys = tl.load(row_keys + safe_rows) if DROPOUT else safe_rows
    s_pointers = s + safe_rows[:, None] * stride_row + ranks[None, :]
    if LORA:
        s_ok = (ranks < kept_columns(rank))[None, :]
        s_gate = tl.load(s_pointers, mask=s_ok, other=0.0)
        s_up = tl.load(s_pointers + stride_part, mask=s_ok, other=0.0)
    for col in tl.range(first_col, tl.minimum(first_col + STRIP, width), BN, num_stages=STAGES):
        cols = col + tl.arange(0, BN)
        col_ok = cols < width
        g_pointers = g + safe_rows[:, None] * stride_gt + cols[None, :]
        gate = _load_columns(g_pointers, col_ok, EVEN).to(tl.float32)
        up = _load_columns(g_pointers + width, col_ok, EVEN).to(tl.float32)
        if LORA:
            b_gate_tile = _load_factor(b_gate, rank_rows, rank_ok, cols, col_ok, stride_b_gate, like)
            b_up_tile = _load_factor(b_up, rank_rows, rank_ok, cols, col_ok, stride_b_up, like)
            gate += tl.dot(s_gate, b_gate_tile, input_precision=PRECISION) * scale
            up += tl.dot(s_up, b_up_tile, input_precision=PRECISION) * scale
        act_tile = (gate / (1.0 + tl.exp(-gate)) * up).to(like)
        tl.store(act + rows.to(tl.int64)[:, None] * stride_act + cols[None, :], act_tile,
                 mask=row_ok & col_ok[None, :])  # fmt: skip
        if LORA:
            a_tile = _load_factor(a_down, rank_rows, rank_ok, cols, col_ok, stride_a, like)
            if DROPOUT:
                act_tile = drop(act_tile, keys, cols, key, threshold, factor)
            acc = tl.dot(act_tile, tl.trans(a_tile), acc, input_precision=PRECISION)
    if LORA:
        tl.store(s_partials + rows.to(tl.int64)[:, None] * stride_partial_row + ranks[None, :], acc, mask=row_ok)


@triton.jit(do_not_specialize=["key"])
def activate_kernel(
    table, g, s, b_gate, b_up, a_down, act, s_partials, row_keys, key, width, stride_gt, stride_part, stride_row,
    stride_b_gate, stride_b_up, stride_a, stride_act, stride_partial, stride_partial_row,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, STRIP: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, FREE_ROWS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (strips, tiles). ``act = silu(gate) * up`` with ``gate, up = G + s S B^T``, and partial sums of
    ``drop(act) A_down^T``.

    Slots of padded rank BR, and with FREE_ROWS the rows of no adapter.
    """
    tile = tl.program_id(1)
    if tile >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, scale, threshold, factor, _ = entry_fields(table, tile)
    first_col = tl.program_id(0) * STRIP
    s_partials += tl.program_id(0).to(tl.int64) * stride_partial
    if in_class(rank, BR):
        _activate_rows(
            g, s, b_gate, b_up, a_down, act, s_partials, row_keys, key, row_start, row_stop, rank_row, rank, scale,
            threshold, factor, first_col, width, stride_gt, stride_part, stride_row, stride_b_gate, stride_b_up,
            stride_a, stride_act, stride_partial_row, BM, BN, BR, STRIP, STAGES, EVEN, True, DROPOUT, PRECISION,
        )  # fmt: skip
    if FREE_ROWS:
        if rank == 0:
            _activate_rows(
                g, s, b_gate, b_up, a_down, act, s_partials, row_keys, key, row_start, row_stop, rank_row, rank, scale,
                threshold, factor, first_col, width, stride_gt, stride_part, stride_row, stride_b_gate, stride_b_up,
                stride_a, stride_act, stride_partial_row, BM, BN, BR, STRIP, 1, EVEN, False, False, PRECISION,
            )  # fmt: skip


@triton.jit
def _gradient_rows(
    g, d, dg, s, ds_down, b_gate, b_up, a_down, sink_gate, sink_up, sink_down, parts, own, row_keys, key, row_start,
    row_stop, rank_row, rank, scale, threshold, factor, partial, first_col, width, stride_gt, stride_dt, stride_dgt,
    stride_part, stride_row, stride_b_gate, stride_b_up, stride_a, stride_g_gate, stride_g_up, stride_g_down,
    part_width, sizes, size_factors,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    LORA: tl.constexpr, WITH_DB: tl.constexpr, SIZES: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    like: tl.constexpr = g.dtype.element_ty
    ranks = tl.arange(0, BR)
    rank_ok = ranks < rank
    rank_rows = (rank_row + ranks).to(tl.int64)
    cols = first_col + tl.arange(0, BN)
    col_ok = cols < width
    if LORA:
        b_gate_tile = _load_factor(b_gate, rank_rows, rank_ok, cols, col_ok, stride_b_gate, like)
        b_up_tile = _load_factor(b_up, rank_rows, rank_ok, cols, col_ok, stride_b_up, like)
        a_tile = _load_factor(a_down, rank_rows, rank_ok, cols, col_ok, stride_a, like)
    if SIZES:
        gate_factors = tl.load(size_factors + cols, mask=col_ok, other=0.0)[None, :]
        up_factors = tl.load(size_factors + width + cols, mask=col_ok, other=0.0)[None, :]
    acc_gate = tl.zeros((BN, BR), dtype=tl.float32)
    acc_up = tl.zeros((BN, BR), dtype=tl.float32)
    acc_down = tl.zeros((BN, BR), dtype=tl.float32)
    for row in tl.range(row_start, row_stop, BM, num_stages=STAGES):
        rows = row + tl.arange(0, BM)
        row_ok = rows < row_stop
        # Rows past the end repeat the slot's own last row against zero rows of S and dS.
        safe_rows = tl.minimum(rows, row_stop - 1).to(tl.int64)
        g_pointers = g + safe_rows[:, None] * stride_gt + cols[None, :]
        d_pointers = d + safe_rows[:, None] * stride_dt + cols[None, :]
        gate = _load_columns(g_pointers, col_ok, EVEN).to(tl.float32)
        up = _load_columns(g_pointers + width, col_ok, EVEN).to(tl.float32)
        d_act = _load_columns(d_pointers, col_ok, EVEN).to(tl.float32)
        if LORA:
            offsets = safe_rows[:, None] * stride_row + ranks[None, :]
            s_ok = row_ok[:, None] & (ranks < kept_columns(rank))[None, :]
            s_gate = tl.load(s + offsets, mask=s_ok, other=0.0)
            s_up = tl.load(s + stride_part + offsets, mask=s_ok, other=0.0)
            ds_tile = tl.load(ds_down + offsets, mask=s_ok, other=0.0)
            gate += tl.dot(s_gate, b_gate_tile, input_precision=PRECISION) * scale
            up += tl.dot(s_up, b_up_tile, input_precision=PRECISION) * scale
        sigmoid = 1.0 / (1.0 + tl.exp(-gate))
        silu = gate * sigmoid
        if LORA:
            act = (silu * up).to(like)
            added = tl.dot(ds_tile, a_tile, input_precision=PRECISION)
            if DROPOUT:
                keep = keep_tile(tl.load(row_keys + safe_rows), cols, key, threshold)
                act = tl.where(keep, act.to(tl.float32) * factor, 0.0).to(like)
                added = tl.where(keep, added * factor, 0.0)
            acc_down = tl.dot(tl.trans(act), ds_tile, acc_down, input_precision=PRECISION)
            d_act += added
        # in the order of the plain activation's gradient: rows of no adapter have its bits
        d_gate = (d_act * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))).to(like)
        d_up = (d_act * silu).to(like)
        dg_pointers = dg + rows.to(tl.int64)[:, None] * stride_dgt + cols[None, :]
        dg_ok = row_ok[:, None] & col_ok[None, :]
        tl.store(dg_pointers, d_gate, mask=dg_ok)
        tl.store(dg_pointers + width, d_up, mask=dg_ok)
        if SIZES:
            # of the rows as they are stored: what a pass of its own would find
            gate_sizes = tl.abs(d_gate.to(tl.float32) * gate_factors)
            put_sizes(sizes, tl.maximum(gate_sizes, tl.abs(d_up.to(tl.float32) * up_factors)), rows, row_ok)
        if LORA and WITH_DB:
            acc_gate = tl.dot(tl.trans(d_gate), s_gate, acc_gate, input_precision=PRECISION)
            acc_up = tl.dot(tl.trans(d_up), s_up, acc_up, input_precision=PRECISION)
    if LORA:
        put_gradient(acc_down, sink_down, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, width * 0,
                     stride_g_down, part_width)  # fmt: skip
        if WITH_DB:
            put_gradient(acc_gate * scale, sink_gate, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok,
                         width, stride_g_gate, part_width)  # fmt: skip
            put_gradient(acc_up * scale, sink_up, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok,
                         width * 2, stride_g_up, part_width)  # fmt: skip


@triton.jit(do_not_specialize=["key"])
def gradient_kernel(
    table, sums, counters, g, d, dg, s, ds_down, b_gate, b_up, a_down, sink_gate, sink_up, sink_down, parts, row_keys,
    key, width,
    stride_gt, stride_dt, stride_dgt, stride_part, stride_row, stride_b_gate, stride_b_up, stride_a, stride_g_gate,
    stride_g_up, stride_g_down, part_width, sizes, size_factors,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    FREE_ROWS: tl.constexpr, WITH_DB: tl.constexpr, SIZES: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, column tiles). dG of gate and up from D (the frozen part of d act) and dS of down; in the same pass
    dA of down and, WITH_DB, dB of gate and up. SIZES: the largest of each row of dG times its columns' factors, too.
    """
    chunk = tl.program_id(0)
    if chunk >= tl.load(table):
        return
    row_start, row_stop, rank_row, rank, scale, threshold, factor, partial = entry_fields(table, chunk)
    own = own_part(sums, partial, chunk)
    first_col = tl.program_id(1) * BN
    if in_class(rank, BR):
        _gradient_rows(
            g, d, dg, s, ds_down, b_gate, b_up, a_down, sink_gate, sink_up, sink_down, parts, own, row_keys, key,
            row_start, row_stop, rank_row, rank, scale, threshold, factor, partial, first_col, width, stride_gt,
            stride_dt, stride_dgt, stride_part, stride_row, stride_b_gate, stride_b_up, stride_a, stride_g_gate,
            stride_g_up, stride_g_down, part_width, sizes, size_factors, BM, BN, BR, STAGES, EVEN, True, WITH_DB,
            SIZES, DROPOUT, PRECISION,
        )  # fmt: skip
        if chunks_done(sums, counters, partial, tl.program_id(1), tl.num_programs(1)):
            cols = first_col + tl.arange(0, BN)
            sum_parts(sums, partial, sink_down, parts, cols, cols < width, width * 0, stride_g_down, part_width)
            if WITH_DB:
                sum_parts(sums, partial, sink_gate, parts, cols, cols < width, width, stride_g_gate, part_width)
                sum_parts(sums, partial, sink_up, parts, cols, cols < width, width * 2, stride_g_up, part_width)
    if FREE_ROWS:
        if rank == 0:
            _gradient_rows(
                g, d, dg, s, ds_down, b_gate, b_up, a_down, sink_gate, sink_up, sink_down, parts, own, row_keys, key,
                row_start, row_stop, rank_row, rank, scale, threshold, factor, partial, first_col, width, stride_gt,
                stride_dt, stride_dgt, stride_part, stride_row, stride_b_gate, stride_b_up, stride_a, stride_g_gate,
                stride_g_up, stride_g_down, part_width, sizes, size_factors, BM, BN, BR, 1, EVEN, False, False, SIZES,
                False, PRECISION,
            )  # fmt: skip
