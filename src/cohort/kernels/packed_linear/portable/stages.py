"""Sums over several programs without a launch of their own: the program that arrives last adds up what all have left.

Programs leave float32 parts in memory and count themselves. The last one to count reads the parts in their own order,
so the bits do not depend on which program that was, and puts the counter back to zero for the next launch.

Shapes:  R rank rows of the bank · r true rank, BR its padded class · N width of a gradient
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["arrives_last", "chunks_done", "own_part", "put_gradient", "sum_parts"]


# 8 is the width of an entry (launch.tables.ENTRY_WIDTH); why it is written out: see kernels/dropout/triton.py


@triton.jit
def arrives_last(counter, count):
    """Count this program; tell whether it is the last of ``count``, which then sees what the others stored."""
    # every thread's stores come before the count that publishes them
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def chunks_done(sums, counters, partial, program, num_programs):
    """Return whether this is the last of the slot's chunks in column ``program``, so that its sum can be taken."""
    done = partial >= 0
    if done:
        count = tl.load(sums + (partial + 1) * 8 + 1)
        done = arrives_last(counters + partial * num_programs + program, count)
    return done


@triton.jit
def own_part(sums, partial, chunk):
    """Return the first rank row that entry ``chunk`` leaves to slot sum ``partial``; 0 for -1."""
    own = partial * 0
    if partial >= 0:
        entry = sums + (partial + 1) * 8
        own = tl.load(entry) + (chunk - tl.load(entry + 4)) * tl.load(entry + 6)
    return own


@triton.jit
def put_gradient(
    acc, sink, parts, own, partial, rank_row, ranks, rank_ok, cols, col_ok, part_start, stride_sink, part_width,
):  # fmt: skip
    """Put ``acc`` [columns, ranks] into the float32 sink, or leave it from rank row ``own`` of ``parts`` on.

    ``partial`` -1 adds, -2 writes over what is there; from 0 on it is the slot sum that takes what is left.
    """
    ok = col_ok[:, None] & rank_ok[None, :]
    if partial < 0:
        sink_tile = sink + (rank_row + ranks).to(tl.int64)[None, :] * stride_sink + cols[:, None]
        if partial == -1:
            acc += tl.load(sink_tile, mask=ok, other=0.0)
        tl.store(sink_tile, acc, mask=ok)
    else:
        part_rows = (own + ranks).to(tl.int64)
        tl.store(parts + part_rows[None, :] * part_width + (part_start + cols)[:, None], acc, mask=ok)


@triton.jit
def sum_parts(sums, partial, sink, parts, cols, col_ok, part_start, stride_sink, part_width):
    """Put slot sum ``partial`` of its chunks' parts into the slot's sink rows, in chunk order, 16 ranks at a time."""
    entry = sums + (partial + 1) * 8
    first, count, rank_row, rank = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    step, kind = tl.load(entry + 6).to(tl.int64) * part_width, tl.load(entry + 7)
    # tiles of offsets and running scalars: tiles of pointers would take twice the registers of all that runs before
    ranks = tl.arange(0, 16)
    part_offsets = ranks[:, None] * part_width + (part_start + cols)[None, :]
    sink_offsets = ranks[:, None] * stride_sink + cols[None, :]
    for first_rank in range(0, rank, 16):
        ok = (first_rank + ranks < rank)[:, None] & col_ok[None, :]
        sink_tile = sink + (rank_row + first_rank).to(tl.int64) * stride_sink
        total = tl.zeros(ok.shape, dtype=tl.float32)
        # -2 writes over what is there
        if kind == -1:
            total += tl.load(sink_tile + sink_offsets, mask=ok, other=0.0)
        left = parts + (first + first_rank).to(tl.int64) * part_width
        for _index in tl.range(0, count, loop_unroll_factor=2):
            # past the first-level cache, which does not see what other multiprocessors wrote
            total += tl.load(left + part_offsets, mask=ok, other=0.0, cache_modifier=".cg")
            left += step
        tl.store(sink_tile + sink_offsets, total, mask=ok)
