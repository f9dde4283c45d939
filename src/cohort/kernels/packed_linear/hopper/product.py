"""The frozen product with the LoRA term in its main loop, for Hopper's warp-group matrix instructions.

A persistent product whose warps have different work: one warp brings tiles in by the tensor memory engine, two warp
groups multiply, each its own 64 rows of a tile of 128 x 256, from one ring of stages. The groups wait for the ring
alone, not for each other, and the loads of the next tile go on while a tile is stored. A slot's LoRA term is further
stages of up to 64 ranks on the same accumulators (:mod:`.term`).

Shapes:  M rows · N output columns · K inner width · R rank rows of the bank · r true rank
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: RUF005
# a jitted function has no Python types: its operands are pointers and tiles; it has no starred lists either

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

from cohort.kernels.packed_linear.hopper.term import (
    GROUP_ROWS,
    TILE_ROWS,
    add_slot,
    next_stage,
    produce_slot,
    slot_fields,
    term_parts,
)
from cohort.kernels.packed_linear.launch.tables import ENTRY_WIDTH, OWNER_WIDTH

__all__ = ["hopper_product_kernel"]

_load = tma.async_copy_global_to_shared
_store = tma.async_copy_shared_to_global
_ENTRY_WIDTH = gl.constexpr(ENTRY_WIDTH)
_OWNER_WIDTH = gl.constexpr(OWNER_WIDTH)


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
            _load(x_desc, [m * TILE_ROWS, k * BK], bar, x_bufs.index(stage))
            if FORWARD:
                _load(w_desc, [n * BN, k * BK], bar, w_bufs.index(stage))
            else:
                _load(w_desc, [k * BK, n * BN], bar, w_bufs.index(stage))
            stage, phase = next_stage(stage, phase, STAGES)
        if PARTS > 0:
            parts = term_parts(n, columns, BN, PARTS, FORWARD)
            stage, phase = produce_slot(
                s_desc, factors, rank_row, rank, M, ring, parts, columns, stage, phase, m, n, BN, STAGES, PARTS, FORWARD
            )
            for index in range(first + 1, last):
                entry = entries + (index + 1) * _ENTRY_WIDTH
                stage, phase = produce_slot(
                    s_desc, factors, gl.load(entry + 2), gl.load(entry + 3), M, ring, parts, columns, stage, phase, m,
                    n, BN, STAGES, PARTS, FORWARD,
                )  # fmt: skip


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
    acc = gl.zeros((GROUP_ROWS, BN), gl.float32, layout)
    for tile in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        m, n = _place(tile, num_m, num_n, group)
        if PARTS > 0:
            # read here, so that they are there when the product is done
            owner = owners + _OWNER_WIDTH * m
            first = gl.load(owner)
            last = gl.load(owner + 1)
            place = slot_fields(owner + 2, FORWARD)
        poison = 0.0
        for k in range(num_k):
            mbarrier.wait(ready.index(stage), phase)
            x = x_bufs.index(stage).slice(HALF * GROUP_ROWS, GROUP_ROWS, dim=0)
            w = w_bufs.index(stage)
            if FORWARD:
                w = w.permute((1, 0))
            acc = warpgroup_mma(x, w, acc, use_acc=k > 0, is_async=True)
            acc = warpgroup_mma_wait(1, (acc,))
            # the step before this one is done, so its stage may be filled again
            mbarrier.arrive(empty.index(_before(stage, STAGES)), pred=k > 0)
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(empty.index(_before(stage, STAGES)))
        if PARTS > 0:
            poison = gl.zeros((GROUP_ROWS,), gl.float32, gl.SliceLayout(1, layout))
            parts = term_parts(n, columns, BN, PARTS, FORWARD)
            acc, poison, stage, phase = add_slot(
                acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout, HALF, STAGES, FORWARD
            )
            for index in range(first + 1, last):
                place = slot_fields(entries + (index + 1) * _ENTRY_WIDTH, FORWARD)
                acc, poison, stage, phase = add_slot(
                    acc, poison, f_desc, s_desc, place, ring, parts, stage, phase, m, layout, HALF, STAGES, FORWARD
                )
        strips = _strips(acc, STRIPS)
        for strip in gl.static_range(STRIPS):
            buf = y_bufs.index(HALF * Y_BUFS + strip % Y_BUFS)
            out = _finished(strips[strip], poison, PARTS).to(dtype)
            tma.store_wait(Y_BUFS - 1)
            buf.store(out)
            fence_async_shared()
            _store(y_desc, [m * TILE_ROWS + HALF * GROUP_ROWS, n * BN + strip * STRIP], buf)
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
    num_m = gl.cdiv(M, TILE_ROWS)
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
