"""Grouped experts on the GPU: rows gathered and summed without atomics, factors read where the bank keeps them.

Shapes:  T rows of the stream · J experts of a token · S sorted pairs · G groups · R rank columns · K, N widths
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.grouped_experts.groups import TILE_ROWS, AdapterGroups
from cohort.kernels.grouped_experts.triton_product import product

__all__ = ["add_gradients", "combine", "combine_backward", "expand_into", "product", "shrink"]

COLUMNS = 1024
DEPTH, WIDTH = 64, 128
# rank columns of one program
MOST_RANK = 64


@triton.jit
def _combine_kernel(
    y_ptr, place_ptr, weights_ptr, end_ptr, out_ptr, width, J: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (tokens, blocks of columns)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    end = tl.load(end_ptr)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for j in tl.static_range(J):
        place = tl.load(place_ptr + token * J + j)
        if place < end:
            y = tl.load(y_ptr + place * width + columns, mask=inside, other=0.0).to(tl.float32)
            if WEIGHTED:
                y *= tl.load(weights_ptr + token * J + j).to(tl.float32)
            total += y
    tl.store(out_ptr + token * width + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _combine_backward_kernel(
    dy_ptr, y_ptr, place_ptr, weights_ptr, end_ptr, dy_s_ptr, dweights_ptr, width, J: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (pairs,): the gradient of the pair's row, and of its weight."""
    pair = tl.program_id(0).to(tl.int64)
    place = tl.load(place_ptr + pair)
    if place < tl.load(end_ptr):
        weight = tl.load(weights_ptr + pair).to(tl.float32)
        sums = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, width, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < width
            dy = tl.load(dy_ptr + pair // J * width + columns, mask=inside, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + place * width + columns, mask=inside, other=0.0).to(tl.float32)
            sums += dy * y
            tl.store(dy_s_ptr + place * width + columns, (dy * weight).to(dy_s_ptr.dtype.element_ty), mask=inside)
        tl.store(dweights_ptr + pair, tl.sum(sums, axis=0))
    else:
        tl.store(dweights_ptr + pair, 0.0)


@triton.jit
def _shrink_kernel(
    x_ptr,
    factors_ptr,
    s_ptr,
    tiles_ptr,
    ends_ptr,
    slots_ptr,
    scales_ptr,
    factor_row_stride,
    expert_stride,
    width,
    num_groups,
    num_slots,
    num_columns,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (tiles, blocks of rank columns): ``scale * x F^T`` of the tile's rows, F the factor of its group."""
    group = tl.load(tiles_ptr + 2 * tl.program_id(0))
    if group < num_groups:
        first = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
        slot = group % num_slots
        expert = (group // num_slots).to(tl.int64)
        start = tl.load(slots_ptr + 2 * slot).to(tl.int64)
        rank = tl.load(slots_ptr + 2 * slot + 1)
        rows = first + tl.arange(0, ROWS)
        is_row = rows < tl.load(ends_ptr + group)
        ranks = tl.program_id(1) * RANK + tl.arange(0, RANK)
        x_rows = x_ptr + rows.to(tl.int64)[:, None] * width
        factor_rows = factors_ptr + (start + ranks)[:, None] * factor_row_stride + expert * expert_stride
        total = tl.zeros([ROWS, RANK], dtype=tl.float32)
        for k in range(0, width, BLOCK):
            columns = k + tl.arange(0, BLOCK)
            inside = (columns < width)[None, :]
            x = tl.load(x_rows + columns[None, :], mask=is_row[:, None] & inside, other=0.0)
            factor = tl.load(factor_rows + columns[None, :], mask=(ranks < rank)[:, None] & inside, other=0.0)
            total = tl.dot(x, tl.trans(factor), total, input_precision="ieee")
        total *= tl.load(scales_ptr + slot)
        s_rows = s_ptr + rows.to(tl.int64)[:, None] * num_columns + ranks[None, :]
        tl.store(s_rows, total.to(s_ptr.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _expand_kernel(
    s_ptr,
    factors_ptr,
    y_ptr,
    tiles_ptr,
    ends_ptr,
    slots_ptr,
    factor_row_stride,
    expert_stride,
    width,
    num_groups,
    num_slots,
    num_columns,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (tiles, blocks of columns): adds ``s F`` to the tile's rows of ``y``."""
    group = tl.load(tiles_ptr + 2 * tl.program_id(0))
    if group < num_groups:
        first = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
        slot = group % num_slots
        expert = (group // num_slots).to(tl.int64)
        start = tl.load(slots_ptr + 2 * slot).to(tl.int64)
        rank = tl.load(slots_ptr + 2 * slot + 1)
        rows = first + tl.arange(0, ROWS)
        is_row = rows < tl.load(ends_ptr + group)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        for r in range(0, rank, RANK):
            ranks = r + tl.arange(0, RANK)
            s_rows = s_ptr + rows.to(tl.int64)[:, None] * num_columns + ranks[None, :]
            s = tl.load(s_rows, mask=is_row[:, None] & (ranks < rank)[None, :], other=0.0)
            factor_rows = factors_ptr + (start + ranks)[:, None] * factor_row_stride + expert * expert_stride
            factor = tl.load(factor_rows + columns[None, :], mask=(ranks < rank)[:, None] & inside[None, :], other=0.0)
            total = tl.dot(s, factor, total, input_precision="ieee")
        y_rows = y_ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
        is_own = is_row[:, None] & inside[None, :]
        total += tl.load(y_rows, mask=is_own, other=0.0).to(tl.float32)
        tl.store(y_rows, total.to(y_ptr.dtype.element_ty), mask=is_own)


@triton.jit
def _gradients_kernel(
    s_ptr,
    x_ptr,
    sink_ptr,
    span_ends_ptr,
    first_spans_ptr,
    slots_ptr,
    fresh_ptr,
    sink_row_stride,
    expert_stride,
    width,
    num_slots,
    num_columns,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (experts * slots, blocks of columns, blocks of rank columns): ``s^T x`` of a group's rows, span by span."""
    slot = tl.program_id(0) % (num_slots - 1)
    expert = tl.program_id(0) // (num_slots - 1)
    # spans of all experts are numbered; none of an expert's is its last
    before = expert * tl.load(first_spans_ptr + num_slots)
    first = before + tl.load(first_spans_ptr + slot)
    last = before + tl.load(first_spans_ptr + slot + 1)
    begin = tl.where(first > 0, tl.load(span_ends_ptr + tl.maximum(first - 1, 0)), 0)
    # a slot without a span ends where it begins
    is_empty = tl.where(last > 0, tl.load(span_ends_ptr + tl.maximum(last - 1, 0)), 0) == begin
    start = tl.load(slots_ptr + 2 * slot).to(tl.int64)
    rank = tl.load(slots_ptr + 2 * slot + 1)
    is_fresh = tl.load(fresh_ptr + slot)
    # a bank has more slots than most passes have rows of
    if (is_empty == 0) | (is_fresh != 0):
        ranks = tl.program_id(2) * RANK + tl.arange(0, RANK)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        sinks = sink_ptr + (start + ranks)[:, None] * sink_row_stride + expert.to(tl.int64) * expert_stride
        sinks += columns[None, :]
        is_own = (ranks < rank)[:, None] & inside[None, :]
        total = tl.zeros([RANK, BLOCK], dtype=tl.float32)
        if is_fresh == 0:
            total += tl.load(sinks, mask=is_own, other=0.0).to(tl.float32)
        for span in range(first, last):
            end = tl.load(span_ends_ptr + span)
            part = tl.zeros([RANK, BLOCK], dtype=tl.float32)
            for row in range(begin, end, ROWS):
                rows = (row + tl.arange(0, ROWS)).to(tl.int64)
                is_row = (rows < end)[:, None]
                s = tl.load(s_ptr + rows[:, None] * num_columns + ranks[None, :], mask=is_row, other=0.0)
                x = tl.load(x_ptr + rows[:, None] * width + columns[None, :], mask=is_row & inside[None, :], other=0.0)
                part = tl.dot(tl.trans(s), x, part, input_precision="ieee")
            total += part
            begin = end
        tl.store(sinks, total.to(sink_ptr.dtype.element_ty), mask=is_own)


def combine(y_SN: Tensor, *, place_TJ: Tensor, weights_TJ: Tensor | None, end_1: Tensor) -> Tensor:
    """Return the weighted sum [T, N] of each token's pairs that are before ``end``."""
    (num_tokens, each), width = place_TJ.shape, y_SN.shape[1]
    out_TN = y_SN.new_empty(num_tokens, width)
    block = min(COLUMNS, triton.next_power_of_2(width))
    if out_TN.numel():
        with on_device_of(y_SN):
            _combine_kernel[(num_tokens, triton.cdiv(width, block))](
                y_SN,
                place_TJ,
                y_SN if weights_TJ is None else weights_TJ,
                end_1,
                out_TN,
                width,
                J=each,
                WEIGHTED=weights_TJ is not None,
                BLOCK=block,
            )
    return out_TN


def combine_backward(
    dy_TN: Tensor, *, y_SN: Tensor, place_TJ: Tensor, weights_TJ: Tensor, end_1: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the pairs [S, N] and of the weights [T, J]; rows of pairs behind ``end`` are anything."""
    dy_SN, dweights_TJ = torch.empty_like(y_SN), torch.empty_like(weights_TJ, dtype=torch.float32)
    block = min(COLUMNS, triton.next_power_of_2(y_SN.shape[1]))
    if dy_SN.numel():
        with on_device_of(y_SN):
            _combine_backward_kernel[(place_TJ.numel(),)](
                dy_TN,
                y_SN,
                place_TJ,
                weights_TJ,
                end_1,
                dy_SN,
                dweights_TJ,
                y_SN.shape[1],
                J=place_TJ.shape[1],
                BLOCK=block,
            )
    return dy_SN, dweights_TJ.to(weights_TJ.dtype)


def shrink(x_SK: Tensor, *, factor_REK: Tensor, groups: AdapterGroups) -> Tensor:
    """Return ``scale * x F^T`` [S, R] of each row's own group; other rows are anything."""
    rank, num_columns = _rank_block(groups)
    s_SR = x_SK.new_empty(len(x_SK), num_columns)
    if len(x_SK):
        with on_device_of(x_SK):
            _shrink_kernel[(len(groups.tiles_N2), num_columns // rank)](
                x_SK,
                factor_REK,
                s_SR,
                groups.tiles_N2,
                groups.ends_G,
                groups.slots_Z2,
                groups.scales_Z,
                factor_REK.stride(0),
                factor_REK.stride(1),
                x_SK.shape[1],
                len(groups.ends_G),
                groups.num_slots,
                num_columns,
                RANK=rank,
                ROWS=TILE_ROWS,
                BLOCK=DEPTH,
            )
    return s_SR


def expand_into(y_SN: Tensor, *, s_SR: Tensor, factor_REN: Tensor, groups: AdapterGroups) -> None:
    """Add ``s F`` of each row's own group to ``y``."""
    rank, num_columns = _rank_block(groups)
    if len(y_SN):
        with on_device_of(y_SN):
            _expand_kernel[(len(groups.tiles_N2), triton.cdiv(y_SN.shape[1], WIDTH))](
                s_SR,
                factor_REN,
                y_SN,
                groups.tiles_N2,
                groups.ends_G,
                groups.slots_Z2,
                factor_REN.stride(0),
                factor_REN.stride(1),
                y_SN.shape[1],
                len(groups.ends_G),
                groups.num_slots,
                num_columns,
                RANK=rank,
                ROWS=TILE_ROWS,
                BLOCK=WIDTH,
            )


def add_gradients(sink_REK: Tensor, *, s_SR: Tensor, x_SK: Tensor, groups: AdapterGroups) -> None:
    """Add ``s^T x`` of each group to the sink of its expert and slot, or write it over what that holds.

    Sums of spans are added one by one: where spans are samples, no cut of a step into passes changes a bit.
    """
    rank, num_columns = _rank_block(groups)
    num_groups = len(groups.ends_G) // groups.num_slots * (groups.num_slots - 1)
    with on_device_of(x_SK):
        _gradients_kernel[(num_groups, triton.cdiv(x_SK.shape[1], WIDTH), num_columns // rank)](
            s_SR,
            x_SK,
            sink_REK,
            groups.span_ends_F,
            groups.first_spans_Y,
            groups.slots_Z2,
            groups.fresh_Z,
            sink_REK.stride(0),
            sink_REK.stride(1),
            x_SK.shape[1],
            groups.num_slots,
            num_columns,
            RANK=rank,
            ROWS=TILE_ROWS,
            BLOCK=WIDTH,
        )


def _rank_block(groups: AdapterGroups) -> tuple[int, int]:
    """Return the rank columns of a program and of all of them together."""
    # in exact numerics the ranks of a pack choose no tile
    rank = 16 if groups.exact else min(MOST_RANK, max(16, triton.next_power_of_2(groups.max_rank)))
    return rank, triton.cdiv(groups.max_rank, rank) * rank
