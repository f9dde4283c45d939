"""The frozen product with the LoRA term in its tiles: Y is written once and never read back.

A persistent product over tiles that the tensor memory engine brings in. A tile's LoRA term is added to its accumulators
before they are stored: for each slot that owns rows of the tile, its rows of S (zero elsewhere) times its factor.

Shapes:  M rows · N output columns · K inner width · R rank rows of the bank · r true rank
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: SIM102
# a jitted function has no Python types: its operands are pointers and tiles; a constexpr and a run-time test stay
# two ifs

from __future__ import annotations

import triton
import triton.language as tl

from cohort.kernels.packed_linear.launch.tables import OWNER_WIDTH
from cohort.kernels.packed_linear.portable.forward import entry_fields, kept_columns

__all__ = ["product_kernel"]

_OWNER_WIDTH = tl.constexpr(OWNER_WIDTH)


@triton.jit
def _add_term(
    acc, s, factor, rows, cols, col_ok, start, stop, rank_row, rank, scale, tile_start, stride_row, stride_factor,
    first_rank, BM: tl.constexpr, BR: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add ``s[rows of the slot] @ factor[its rank rows]`` to ``acc``, SCALED by the slot's scale."""
    ranks = first_rank + tl.arange(0, BR)
    rank_ok = ranks < rank
    own = (rows >= start) & (rows < stop)
    s_ok = own[:, None] & (ranks < kept_columns(rank))[None, :]
    s_tile = tl.load(s + rows.to(tl.int64)[:, None] * stride_row + ranks[None, :], mask=s_ok, other=0.0)
    if SCALED:
        s_tile = (s_tile.to(tl.float32) * scale).to(s_tile.dtype)
    factor_tile = tl.load(
        factor + (rank_row + ranks).to(tl.int64)[:, None] * stride_factor + cols[None, :],
        mask=rank_ok[:, None] & col_ok[None, :],
        other=0.0,
    ).to(s_tile.dtype)
    if (start > tile_start) | (stop < tile_start + BM):
        # 0 x NaN is NaN: where a tile has other rows than the slot's, its factor enters as finite numbers, and what was
        # not finite in it poisons the slot's own rows alone
        finite = tl.abs(factor_tile.to(tl.float32)) < float("inf")
        broken = tl.max(tl.where(finite, 0, 1)) > 0
        factor_tile = tl.where(finite, factor_tile, 0.0).to(s_tile.dtype)
        s_tile = tl.where(own[:, None] & broken, float("nan"), s_tile).to(s_tile.dtype)
    return tl.dot(s_tile, factor_tile, acc, input_precision=PRECISION)


@triton.jit(do_not_specialize=["M"])
def product_kernel(
    x_desc, w_desc, y_desc, owners, entries, s, f0, f1, f2, start0, start1, start2, stop0, stop1, stop2, M, N, K,
    stride_part, stride_row, stride_f0, stride_f1, stride_f2,
    PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, GROUP: tl.constexpr,
    RANK_STEPS: tl.constexpr, FORWARD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (programs,), each of which takes tiles in turn. ``Y = X W^T`` or ``X W``, plus the LoRA term.

    FORWARD, W is [N, K] and part p adds ``s S_p F_p`` to its own columns ``start_p:stop_p``; else W is [K, N] and all
    parts add theirs to every column. ``owners`` has the first and the past-the-last of ``entries`` with rows in each
    tile of BM rows.
    """
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=PARTS == 0):
        group = tile // (GROUP * num_n)
        first_m = group * GROUP
        size = tl.minimum(num_m - first_m, GROUP)
        m = first_m + (tile % (GROUP * num_n)) % size
        n = (tile % (GROUP * num_n)) // size
        if PARTS > 0:
            # read here, so that they are there when the product is done
            first = tl.load(owners + _OWNER_WIDTH * m)
            last = tl.load(owners + _OWNER_WIDTH * m + 1)
            start, stop, rank_row, rank, scale, _t, _f, _p = entry_fields(entries, first)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = x_desc.load([m * BM, k * BK])
            if FORWARD:
                acc = tl.dot(x, w_desc.load([n * BN, k * BK]).T, acc)
            else:
                acc = tl.dot(x, w_desc.load([k * BK, n * BN]), acc)
        if PARTS > 0:
            rows = m * BM + tl.arange(0, BM)
            cols = n * BN + tl.arange(0, BN)
            s_part, factor, stride_factor, column, column_stop = s, f0, stride_f0, start0, stop0
            if FORWARD:
                if PARTS > 1:
                    if n * BN >= start1:
                        s_part, factor, stride_factor = s + stride_part, f1, stride_f1
                        column, column_stop = start1, stop1
                    if PARTS > 2:
                        if n * BN >= start2:
                            s_part, factor, stride_factor = s + 2 * stride_part, f2, stride_f2
                            column, column_stop = start2, stop2
            # backward, every part adds to every column; forward, columns of no part have an empty range here
            col_ok = (cols >= column) & (cols < column_stop) if FORWARD else cols < N
            cols = cols - column if FORWARD else cols
            for index in tl.range(first, last, num_stages=1):
                if index > first:
                    start, stop, rank_row, rank, scale, _t, _f, _p = entry_fields(entries, index)
                for STEP in tl.static_range(RANK_STEPS):
                    acc = _add_term(
                        acc, s_part, factor, rows, cols, col_ok, start, stop, rank_row, rank, scale, m * BM,
                        stride_row, stride_factor, STEP * BR, BM, BR, FORWARD, PRECISION,
                    )  # fmt: skip
                    if PARTS > 1 and not FORWARD:
                        acc = _add_term(
                            acc, s + stride_part, f1, rows, cols, col_ok, start, stop, rank_row, rank, scale, m * BM,
                            stride_row, stride_f1, STEP * BR, BM, BR, FORWARD, PRECISION,
                        )  # fmt: skip
                    if PARTS > 2 and not FORWARD:
                        acc = _add_term(
                            acc, s + 2 * stride_part, f2, rows, cols, col_ok, start, stop, rank_row, rank, scale,
                            m * BM, stride_row, stride_f2, STEP * BR, BM, BR, FORWARD, PRECISION,
                        )  # fmt: skip
        # two stores of half the columns take half the shared memory, which buys a pipeline stage
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        y_desc.store([m * BM, n * BN], left.to(y_desc.dtype))
        y_desc.store([m * BM, n * BN + BN // 2], right.to(y_desc.dtype))
