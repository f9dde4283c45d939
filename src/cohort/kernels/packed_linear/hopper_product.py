"""The frozen product with the LoRA term in its main loop, for Hopper's warp-group matrix instructions.

A persistent product whose warps have different work: one warp brings tiles in by the tensor memory engine, two warp
groups multiply, each its own 64 rows of a tile of 128 x 256, from one ring of stages. The groups wait for the ring
alone, not for each other, and the loads of the next tile go on while a tile is stored. A slot's LoRA term is further
stages of up to 64 ranks on the same accumulators: its rows of S (in registers, zero elsewhere) times its rank rows, 16
of them a matrix instruction.

Shapes:  M rows · N output columns · K inner width · R rank rows of the bank · r true rank
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: RUF005, SIM114
# a jitted function has no Python types: its operands are pointers and tiles; it has no starred lists either, and a
# constexpr and a run-time test stay two branches

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

__all__ = ["hopper_product_kernel"]

_load = tma.async_copy_global_to_shared
_store = tma.async_copy_shared_to_global
_ENTRY_WIDTH = gl.constexpr(8)
_OWNER_WIDTH = gl.constexpr(8)
# rows of a warp group, and of a tile
_GROUP_ROWS = gl.constexpr(64)
_TILE_ROWS = gl.constexpr(128)


@gluon.jit
def _view(buf, desc):
    """Return the beginning of a stage's buffer as a tile of ``desc``."""
    return buf._reinterpret(buf.dtype, desc.block_type.shape, desc.layout)


@gluon.jit
def _next(stage, phase, STAGES: gl.constexpr):
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _before(stage, STAGES: gl.constexpr):
    # not a variable that follows ``stage``: an alias of a value that a loop carries is not carried itself
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def _place(tile, num_m, num_n, group):
    """Return the tile's row and column of tiles: ``group`` rows side by side share a weight's columns in cache."""
    in_group = group * num_n
    first_m = tile // in_group * group
    size = gl.minimum(num_m - first_m, group)
    inner = tile % in_group
    return first_m + inner % size, inner // size


@gluon.jit
def _terms(n, columns, BN: gl.constexpr, PARTS: gl.constexpr, FORWARD: gl.constexpr):
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
def _produce(
    x_desc, w_desc, s_desc, factors, owners, entries, M, ring, counts, columns,
    BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    FORWARD: gl.constexpr,
):  # fmt: skip
    """Bring in the stages of this program's tiles, one after the other, as the ring empties."""
    x_bufs, w_bufs, ready, empty = ring
    num_m, num_n, num_k, group = counts
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        m, n = _place(tile, num_m, num_n, group)
        if PARTS > 0:
            # read here, so that they are there when the product's stages are on their way
            owner = owners + _OWNER_WIDTH * m
            first = gl.load(owner)
            last = gl.load(owner + 1)
            rank_row = gl.load(owner + 4)
            rank = gl.load(owner + 5)
        for k in range(num_k):
            mbarrier.wait(empty.index(stage), phase)
            bar = ready.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + w_desc.block_type.nbytes)
            _load(x_desc, [m * _TILE_ROWS, k * BK], bar, x_bufs.index(stage))
            if FORWARD:
                _load(w_desc, [n * BN, k * BK], bar, w_bufs.index(stage))
            else:
                _load(w_desc, [k * BK, n * BN], bar, w_bufs.index(stage))
            stage, phase = _next(stage, phase, STAGES)
        if PARTS > 0:
            parts = _terms(n, columns, BN, PARTS, FORWARD)
            stage, phase = _produce_slot(
                s_desc, factors, rank_row, rank, M, ring, parts, columns, stage, phase, m, n, BN, STAGES, PARTS, FORWARD
            )
            for index in range(first + 1, last):
                entry = entries + (index + 1) * _ENTRY_WIDTH
                stage, phase = _produce_slot(
                    s_desc, factors, gl.load(entry + 2), gl.load(entry + 3), M, ring, parts, columns, stage, phase, m,
                    n, BN, STAGES, PARTS, FORWARD,
                )  # fmt: skip


@gluon.jit
def _produce_slot(
    s_desc, factors, rank_row, rank, M, ring, parts, columns, stage, phase, m, n,
    BN: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, FORWARD: gl.constexpr,
):  # fmt: skip
    """Bring in the stages of one slot's term, in the order in which :func:`_add_slot` takes them."""
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
            row = part * M + m * _TILE_ROWS
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
            stage, phase = _next(stage, phase, STAGES)
    return stage, phase


@gluon.jit
def _consume(
    y_desc, f_desc, s_desc, owners, entries, y_bufs, ring, counts, columns,
    HALF: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    FORWARD: gl.constexpr,
):  # fmt: skip
    """Multiply rows ``64 HALF`` to ``64 HALF + 63`` of this program's tiles and store them."""
    x_bufs, w_bufs, ready, empty = ring
    num_m, num_n, num_k, group = counts
    dtype: gl.constexpr = y_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    STRIP: gl.constexpr = y_desc.block_type.shape[1]
    STRIPS: gl.constexpr = BN // STRIP
    Y_BUFS: gl.constexpr = y_bufs.type.shape[0] // 2
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    acc = gl.zeros((_GROUP_ROWS, BN), gl.float32, layout)
    for tile in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        m, n = _place(tile, num_m, num_n, group)
        if PARTS > 0:
            # read here, so that they are there when the product is done
            owner = owners + _OWNER_WIDTH * m
            first = gl.load(owner)
            last = gl.load(owner + 1)
            place = _slot_fields(owner + 2, FORWARD)
        poison = 0.0
        for k in range(num_k):
            mbarrier.wait(ready.index(stage), phase)
            x = x_bufs.index(stage).slice(HALF * _GROUP_ROWS, _GROUP_ROWS, dim=0)
            w = w_bufs.index(stage)
            if FORWARD:
                w = w.permute((1, 0))
            acc = warpgroup_mma(x, w, acc, use_acc=k > 0, is_async=True)
            acc = warpgroup_mma_wait(1, (acc,))
            # the step before this one is done, so its stage may be filled again
            mbarrier.arrive(empty.index(_before(stage, STAGES)), pred=k > 0)
            stage, phase = _next(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(empty.index(_before(stage, STAGES)))
        if PARTS > 0:
            poison = gl.zeros((_GROUP_ROWS,), gl.float32, gl.SliceLayout(1, layout))
            parts = _terms(n, columns, BN, PARTS, FORWARD)
            acc, poison, stage, phase = _add_slot(
                acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout, HALF, STAGES, FORWARD
            )
            for index in range(first + 1, last):
                place = _slot_fields(entries + (index + 1) * _ENTRY_WIDTH, FORWARD)
                acc, poison, stage, phase = _add_slot(
                    acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout, HALF, STAGES, FORWARD
                )
        strips = _strips(acc, STRIPS)
        for strip in gl.static_range(STRIPS):
            buf = y_bufs.index(HALF * Y_BUFS + strip % Y_BUFS)
            out = _finished(strips[strip], poison, PARTS).to(dtype)
            tma.store_wait(Y_BUFS - 1)
            buf.store(out)
            fence_async_shared()
            _store(y_desc, [m * _TILE_ROWS + HALF * _GROUP_ROWS, n * BN + strip * STRIP], buf)
    tma.store_wait(0)


@gluon.jit
def _halves(tile):
    return tile.reshape(tile.shape[0], 2, tile.shape[1] // 2).permute(0, 2, 1).split()


@gluon.jit
def _strips(acc, STRIPS: gl.constexpr):
    """Cut the columns of ``acc`` into 1, 2 or 4 STRIPS, each a thread's own registers."""
    if STRIPS == 1:
        return (acc,)
    else:
        left, right = _halves(acc)
        if STRIPS == 2:
            return (left, right)
        else:
            gl.static_assert(STRIPS == 4)
            first, second = _halves(left)
            third, fourth = _halves(right)
            return (first, second, third, fourth)


@gluon.jit
def _finished(strip, poison, PARTS: gl.constexpr):
    """Return ``strip`` with its rows that ``poison`` names made NaN."""
    # added to a copy: an accumulator that anything but a matrix instruction writes to makes all of them wait
    layout: gl.constexpr = strip.type.layout
    return strip + gl.convert_layout(poison, gl.SliceLayout(1, layout))[:, None] if PARTS > 0 else strip


@gluon.jit
def _slot_fields(entry, FORWARD: gl.constexpr):
    """Return (first row, row after the last, rank, scale) of a slot; the scale counts forward alone."""
    scale = gl.load(entry + 4).to(gl.float32, bitcast=True) if FORWARD else 1.0
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 3), scale


@gluon.jit
def _add_slot(
    acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout: gl.constexpr,
    HALF: gl.constexpr, STAGES: gl.constexpr, FORWARD: gl.constexpr,
):  # fmt: skip
    """Add ``s S F`` of one slot with rows in the tile, a stage for each part and 64 ranks (16 where none has more)."""
    x_bufs, w_bufs, ready, empty = ring
    start, stop, rank, scale = place
    first_part, last_part = parts
    RANKS: gl.constexpr = s_desc.block_type.shape[1]
    row0 = m * _TILE_ROWS + HALF * _GROUP_ROWS
    present = (start < row0 + _GROUP_ROWS) & (stop > row0)
    shared = present & ((start > row0) | (stop < row0 + _GROUP_ROWS))
    for done in range(0, rank, RANKS):
        left = rank - done
        for _part in range(first_part, last_part):
            mbarrier.wait(ready.index(stage), phase)
            s_buf = _view(x_bufs.index(stage), s_desc).slice(HALF * _GROUP_ROWS, _GROUP_ROWS, dim=0)
            f_buf = _view(w_bufs.index(stage), f_desc)
            whole = present
            if shared:
                whole = _is_finite(f_buf, left, RANKS)
            if whole:
                acc = _add_ranks(acc, s_buf, f_buf, left, start, stop, scale, row0, layout, RANKS, FORWARD)
            else:
                rows = row0 + gl.arange(0, _GROUP_ROWS, gl.SliceLayout(1, layout))
                poison = gl.where((rows >= start) & (rows < stop), float("nan"), poison)
            # S was read as a thread reads memory: that must be over before the engine writes there again
            fence_async_shared()
            mbarrier.arrive(empty.index(stage))
            stage, phase = _next(stage, phase, STAGES)
    return acc, poison, stage, phase


@gluon.jit
def _is_finite(f_buf, left, RANKS: gl.constexpr):
    """Tell whether the first ``left`` rank rows are: 0 x NaN is NaN, which must not reach the tile's other slots.

    Such a stage is left out and makes the slot's own rows NaN. Each 16 rows are reduced for themselves: with one
    maximum of all kept until the end, the machine code of Triton 3.6 read wrong memory in tiles of one slot.
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
    rows = row0 + gl.arange(0, _GROUP_ROWS, gl.SliceLayout(1, operand))
    s = s_buf.slice(FIRST, COUNT, dim=1).load(operand)
    if FORWARD:
        s = (s.to(gl.float32) * scale).to(s_buf.dtype)
    s = gl.where(((rows >= start) & (rows < stop))[:, None], s, gl.zeros_like(s))
    acc = warpgroup_mma(s, f_buf.slice(FIRST, COUNT, dim=0), acc, is_async=True)
    return warpgroup_mma_wait(0, (acc,))


# one binary for each PARTS, FORWARD, number of ranks and dtype, so that the one that runs is one that the GPU tests ran
@gluon.jit(
    do_not_specialize=[
        "column0", "column1", "column2", "stop0", "stop1", "stop2", "M", "N", "K", "group",
    ]
)  # fmt: skip
def hopper_product_kernel(
    x_desc, w_desc, y_desc, s_desc, f0_desc, f1_desc, f2_desc, owners, entries, column0, column1, column2, stop0,
    stop1, stop2, M, N, K, group,
    STAGES: gl.constexpr, Y_BUFS: gl.constexpr, PARTS: gl.constexpr,
    FORWARD: gl.constexpr,
):  # fmt: skip
    """Grid (programs,), each of which takes tiles in turn. ``Y = X W^T`` or ``X W``, plus the LoRA term.

    FORWARD, W is [N, K] and part p adds ``s S_p F_p`` to its own columns ``column_p:stop_p``; else W is [K, N] and all
    parts add theirs to every column. ``owners`` has the first and the past-the-last of ``entries`` with rows in each
    tile of 128 rows, and the fields of the first. ``group`` rows of tiles are worked on side by side. Runs with 4
    warps, the first of the two groups.
    """
    dtype: gl.constexpr = x_desc.dtype
    BK: gl.constexpr = x_desc.block_type.shape[1]
    BN: gl.constexpr = w_desc.block_type.shape[0] if FORWARD else w_desc.block_type.shape[1]
    x_bufs = gl.allocate_shared_memory(dtype, [STAGES] + x_desc.block_type.shape, x_desc.layout)
    w_bufs = gl.allocate_shared_memory(dtype, [STAGES] + w_desc.block_type.shape, w_desc.layout)
    y_bufs = gl.allocate_shared_memory(dtype, [2 * Y_BUFS] + y_desc.block_type.shape, y_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    num_m = gl.cdiv(M, _TILE_ROWS)
    num_n = gl.cdiv(N, BN)
    num_k = gl.cdiv(K, BK)
    ring = (x_bufs, w_bufs, ready, empty)
    counts = (num_m, num_n, num_k, group)
    columns = (column0, column1, column2, stop0, stop1, stop2)
    gl.warp_specialize(
        [
            (_consume, (y_desc, f0_desc, s_desc, owners, entries, y_bufs, ring, counts, columns, 0, BN, STAGES, PARTS,
                        FORWARD)),
            (_consume, (y_desc, f0_desc, s_desc, owners, entries, y_bufs, ring, counts, columns, 1, BN, STAGES, PARTS,
                        FORWARD)),
            (_produce, (x_desc, w_desc, s_desc, (f0_desc, f1_desc, f2_desc), owners, entries, M, ring, counts, columns,
                        BN, BK, STAGES, PARTS, FORWARD)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
