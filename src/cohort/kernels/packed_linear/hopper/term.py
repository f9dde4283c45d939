"""The LoRA term of the product for Hopper: how a slot's stages are brought in and multiplied.

A stage of the ring holds up to 64 columns of S of a tile's rows and as many rank rows of a factor F (B forward, A
backward). A warp group multiplies its own 64 rows of S, in registers and zero where a row is another slot's, with those
rank rows, 16 of them a matrix instruction.

Shapes:  M rows · N output columns · R rank rows of the bank · r true rank
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: SIM114
# a jitted function has no Python types: its operands are pointers and tiles; a constexpr and a run-time test stay two
# branches

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cohort.kernels.packed_linear.launch.tables import PRODUCT_ROWS

__all__ = ["GROUP_ROWS", "TILE_ROWS", "add_slot", "next_stage", "produce_slot", "slot_fields", "term_parts"]

_load = tma.async_copy_global_to_shared
# rows of a warp group, and of a tile
GROUP_ROWS = gl.constexpr(PRODUCT_ROWS // 2)
TILE_ROWS = gl.constexpr(PRODUCT_ROWS)


@gluon.jit
def _view(buf, desc):
    """Return the beginning of a stage's buffer as a tile of ``desc``."""
    return buf._reinterpret(buf.dtype, desc.block_type.shape, desc.layout)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """Return the ring's next stage and the phase of its barriers."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def term_parts(n, columns, BN: gl.constexpr, PARTS: gl.constexpr, FORWARD: gl.constexpr):
    """Return (first part, past the last part) that add to columns ``n BN``: forward the owner's, backward all."""
    column0, column1, column2, stop0, stop1, stop2 = columns
    first = 0
    last = PARTS
    if FORWARD:
        column = n * BN
        first = gl.to_tensor(0)
        last = gl.where((column >= column0) & (column < stop0), 1, 0)
        if PARTS > 1:
            own = (column >= column1) & (column < stop1)
            first = gl.where(own, 1, first)
            last = gl.where(own, 2, last)
        if PARTS > 2:
            own = (column >= column2) & (column < stop2)
            first = gl.where(own, 2, first)
            last = gl.where(own, 3, last)
    return first, last


@gluon.jit
def _load_term(f_desc, s_desc, s_row, f_row, f_column, s_column, ready, x_buf, w_buf):
    """Bring columns of S of a tile's rows and as many rank rows of a factor into a stage."""
    s_buf = _view(x_buf, s_desc)
    f_buf = _view(w_buf, f_desc)
    mbarrier.expect(ready, s_desc.block_type.nbytes + f_desc.block_type.nbytes)
    _load(s_desc, [s_row, s_column], ready, s_buf)
    _load(f_desc, [f_row, f_column], ready, f_buf)


@gluon.jit
def produce_slot(
    s_desc, factors, rank_row, rank, M, ring, parts, columns, stage, phase, m, n,
    BN: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, FORWARD: gl.constexpr,
):  # fmt: skip
    """Bring in the stages of one slot's term, in the order in which :func:`add_slot` takes them."""
    x_bufs, w_bufs, ready, empty = ring
    f0_desc, f1_desc, f2_desc = factors
    column0, column1, column2, _stop0, _stop1, _stop2 = columns
    first_part, last_part = parts
    for done in range(0, rank, s_desc.block_type.shape[1]):
        for part in range(first_part, last_part):
            mbarrier.wait(empty.index(stage), phase)
            bar = ready.index(stage)
            x_buf = x_bufs.index(stage)
            w_buf = w_bufs.index(stage)
            row = part * M + m * TILE_ROWS
            f_row = rank_row + done
            if PARTS == 1:
                column = n * BN - column0 if FORWARD else n * BN
                _load_term(f0_desc, s_desc, row, f_row, column, done, bar, x_buf, w_buf)
            elif part == 0:
                column = n * BN - column0 if FORWARD else n * BN
                _load_term(f0_desc, s_desc, row, f_row, column, done, bar, x_buf, w_buf)
            elif part == 1:
                column = n * BN - column1 if FORWARD else n * BN
                _load_term(f1_desc, s_desc, row, f_row, column, done, bar, x_buf, w_buf)
            else:
                column = n * BN - column2 if FORWARD else n * BN
                _load_term(f2_desc, s_desc, row, f_row, column, done, bar, x_buf, w_buf)
            stage, phase = next_stage(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def slot_fields(entry, FORWARD: gl.constexpr):
    """Return (first row, row after the last, rank, scale) of a slot; the scale counts forward alone."""
    scale = gl.load(entry + 4).to(gl.float32, bitcast=True) if FORWARD else 1.0
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 3), scale


@gluon.jit
def add_slot(
    acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout: gl.constexpr,
    HALF: gl.constexpr, STAGES: gl.constexpr, FORWARD: gl.constexpr,
):  # fmt: skip
    """Add ``s S F`` of one slot with rows in the tile, a stage for each part and 64 ranks (16 where none has more).

    Each stage is waited for and given back also by a warp group that has no rows of the slot: the ring counts both.
    """
    x_bufs, w_bufs, ready, empty = ring
    start, stop, rank, scale = place
    first_part, last_part = parts
    RANKS: gl.constexpr = s_desc.block_type.shape[1]
    row0 = m * TILE_ROWS + HALF * GROUP_ROWS
    present = (start < row0 + GROUP_ROWS) & (stop > row0)
    shared = present & ((start > row0) | (stop < row0 + GROUP_ROWS))
    for done in range(0, rank, RANKS):
        left = rank - done
        for _part in range(first_part, last_part):
            mbarrier.wait(ready.index(stage), phase)
            s_buf = _view(x_bufs.index(stage), s_desc).slice(HALF * GROUP_ROWS, GROUP_ROWS, dim=0)
            f_buf = _view(w_bufs.index(stage), f_desc)
            whole = present
            if shared:
                whole = _is_finite(f_buf, left, RANKS)
            if whole:
                acc = _add_ranks(acc, s_buf, f_buf, left, start, stop, scale, row0, layout, RANKS, FORWARD)
            else:
                rows = row0 + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, layout))
                poison = gl.where((rows >= start) & (rows < stop), float("nan"), poison)
            # S was read as a thread reads memory: that must be over before the engine writes there again
            fence_async_shared()
            mbarrier.arrive(empty.index(stage))
            stage, phase = next_stage(stage, phase, STAGES)
    return acc, poison, stage, phase


@gluon.jit
def _is_finite(f_buf, left, RANKS: gl.constexpr):
    """Return whether the first ``left`` rank rows are finite: 0 x NaN is NaN, which must not reach other slots' rows.

    A stage that is not finite is left out and makes the slot's own rows NaN. Each 16 rows are reduced for themselves:
    with one maximum of all kept until the end, the machine code of Triton 3.6 read wrong memory in tiles of one slot.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    largest = 0
    for first in gl.static_range(0, RANKS, 16):
        if first < left:
            bits = f_buf.slice(first, 16, dim=0).load(wide).to(gl.int16, bitcast=True).to(gl.int32) & 0x7FFF
            largest = gl.maximum(largest, gl.max(gl.max(bits, axis=1), axis=0))
    return largest < (0x7F80 if f_buf.dtype == gl.bfloat16 else 0x7C00)


@gluon.jit
def _add_ranks(
    acc, s_buf, f_buf, left, start, stop, scale, row0, layout: gl.constexpr, RANKS: gl.constexpr,
    FORWARD: gl.constexpr,
):  # fmt: skip
    """Add the first ``left`` ranks of a stage, rounded up to 16: the bank has other slots' rank rows behind them."""
    if RANKS == 16:
        acc = _multiply(acc, s_buf, f_buf, start, stop, scale, row0, layout, 0, 16, FORWARD)
    else:
        gl.static_assert(RANKS == 64)
        if left > 48:
            acc = _multiply(acc, s_buf, f_buf, start, stop, scale, row0, layout, 0, 64, FORWARD)
        else:
            if left > 16:
                acc = _multiply(acc, s_buf, f_buf, start, stop, scale, row0, layout, 0, 32, FORWARD)
                if left > 32:
                    acc = _multiply(acc, s_buf, f_buf, start, stop, scale, row0, layout, 32, 16, FORWARD)
            else:
                acc = _multiply(acc, s_buf, f_buf, start, stop, scale, row0, layout, 0, 16, FORWARD)
    return acc


@gluon.jit
def _multiply(
    acc, s_buf, f_buf, start, stop, scale, row0, layout: gl.constexpr, FIRST: gl.constexpr,
    COUNT: gl.constexpr, FORWARD: gl.constexpr,
):  # fmt: skip
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=layout, k_width=2)
    rows = row0 + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, operand))
    s = s_buf.slice(FIRST, COUNT, dim=1).load(operand)
    if FORWARD:
        s = (s.to(gl.float32) * scale).to(s_buf.dtype)
    s = gl.where(((rows >= start) & (rows < stop))[:, None], s, gl.zeros_like(s))
    acc = warpgroup_mma(s, f_buf.slice(FIRST, COUNT, dim=0), acc, is_async=True)
    return warpgroup_mma_wait(0, (acc,))
