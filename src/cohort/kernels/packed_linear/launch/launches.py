"""One function a launch: grids, strides and what fits into shared memory.

Shapes:  T rows of the stream · K input width · N output width of one part · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from cohort.kernels.dropout.triton import as_signed32
from cohort.kernels.packed_linear.choice.tiles import (
    TileChoice,
    filling_strip,
    filling_tiles,
    fitting_stages,
    resident_stages,
    shares_of,
)
from cohort.kernels.packed_linear.launch.support import (
    chunk_counters,
    chunk_parts,
    num_multiprocessors,
    precision,
    shared_bytes,
    sink_of,
    sum_partials,
    three,
)
from cohort.kernels.packed_linear.launch.tables import LaunchTables, RankPass
from cohort.kernels.packed_linear.portable.augmented import NO_SPREAD, Spread
from cohort.kernels.packed_linear.portable.backward import input_side_kernel, output_side_kernel
from cohort.kernels.packed_linear.portable.forward import expand_kernel, shrink_kernel
from cohort.kernels.packed_linear.portable.rounding import Rounding
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["MOST_PARTS", "expand", "input_side", "output_side", "output_side_ds", "shrink"]

# A launch takes three pointers of each kind; more siblings than q, k and v take further launches.
MOST_PARTS = 3


def _keys(parts: Sequence[LoraPart]) -> tuple[object, ...]:
    return three([as_signed32(part.module_key) for part in parts])


def shrink(
    x_TK: Tensor,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice,
    spread: Spread | None = None,
) -> None:
    """Write S of every part from one read of X; ``spread`` that of a single part behind X as well."""
    factors, width = [part.a_RK for part in parts], x_TK.shape[1]
    _shrink(
        x_TK, factors, s_PTC, rank_pass, columns=[slice(0, width)] * len(parts), keys=_keys(parts), scaled=False,
        tables=tables, row_keys_T=row_keys_T, block=tiles.shrink_block, shares=tiles.shrink_splits,
        warps=tiles.shrink_warps, most_stages=tiles.shrink_stages, spread=spread,
    )  # fmt: skip


def output_side_ds(
    dy_TN: Tensor,
    parts: Sequence[LoraPart],
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    tiles: TileChoice,
    rounding: Rounding | None = None,
) -> Tensor:
    """Return dS [P, T, C]: each part shrinks its own columns of dY.

    ``rounding``, where the sizes of dY's rows are in it, gets their codes from the same read; then every column of dY
    belongs to one part.
    """
    ds_PTC = dy_TN.new_empty(len(parts), dy_TN.shape[0], tables.num_columns)
    _shrink(
        dy_TN, [part.b_RN for part in parts], ds_PTC, rank_pass, columns=[part.columns for part in parts],
        keys=(0, 0, 0), scaled=True, tables=tables, row_keys_T=None, block=tiles.ds_block, shares=tiles.ds_splits,
        warps=tiles.ds_warps, most_stages=tiles.ds_stages, rounding=rounding,
    )  # fmt: skip
    return ds_PTC


def _shrink(
    x_TK: Tensor,
    factors: Sequence[Tensor],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    columns: Sequence[slice],
    keys: tuple[object, ...],
    scaled: bool,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    block: int,
    shares: int | None,
    warps: int,
    most_stages: int,
    spread: Spread | None = None,
    rounding: Rounding | None = None,
) -> None:
    if rank_pass.num_tiles == 0:
        return
    num_parts = len(factors)
    num_rows = x_TK.shape[0]
    apart = any(own != columns[0] for own in columns) or columns[0] != slice(0, x_TK.shape[1])
    shared_parts = 1 if apart else num_parts
    widths = [own.stop - own.start for own in columns]
    splits = shares_of(max(widths)) if shares is None else shares
    dropout = row_keys_T is not None and tables.has_dropout
    # a slot's padded rank of columns each, for the rows of every tile
    shape = (num_parts * splits, num_rows, rank_pass.max_class) if splits > 1 else (1, 1, 1)
    left_PTC = x_TK.new_empty(shape, dtype=torch.float32)
    counters = tables.counters(rank_pass.num_tiles * MOST_PARTS) if splits > 1 else rank_pass.sums
    element = x_TK.element_size()
    stage_bytes = block * (tables.tile_rows + shared_parts * rank_pass.max_class) * element
    limit_bytes = shared_bytes(x_TK.device)
    grid = (rank_pass.num_tiles, splits, num_parts if apart else 1)
    # siblings that share a tile keep the deeper pipeline: 38 us for q, k and v, with three stages 42
    if splits > 1 and shared_parts == 1:
        most_stages = resident_stages(
            most_stages, stage_bytes=stage_bytes, num_programs=math.prod(grid), limit_bytes=limit_bytes,
            num_multiprocessors=num_multiprocessors(x_TK.device),
        )  # fmt: skip
    stages = fitting_stages(most_stages, stage_bytes=stage_bytes, limit_bytes=limit_bytes)
    shrink_kernel[grid](
        rank_pass.tiles, x_TK, *three(factors), s_PTC, left_PTC, counters, row_keys_T if dropout else x_TK, *keys,
        *three([own.start for own in columns]), *three(widths), x_TK.stride(0),
        *three([a.stride(0) for a in factors]), s_PTC.stride(0), s_PTC.stride(1), left_PTC.stride(0),
        left_PTC.stride(1), *((x_TK, x_TK, 0) if spread is None else spread.arguments()),
        *((x_TK, x_TK, x_TK, x_TK, 0) if rounding is None else rounding.arguments()),
        PARTS=num_parts, BM=tables.tile_rows, BK=block, SPLITS=splits, MAX_R=rank_pass.max_class,
        EVEN=all(width % block == 0 for width in widths), APART=apart, SCALED=scaled, DROPOUT=dropout,
        **(NO_SPREAD if spread is None else spread.constants()), ROUNDS=rounding is not None,
        PRECISION=precision(x_TK), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def expand(
    y_TN: Tensor,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    tiles: TileChoice,
    add: bool,
) -> None:
    """Write ``s S B^T`` into Y, or add it; without ``add`` rows of no adapter become zero."""
    factors = [part.b_RN for part in parts]
    widths = [b.shape[1] for b in factors]
    strip = filling_strip(
        tiles.expand_strip,
        block=tiles.expand_block,
        width=sum(widths),
        num_tiles=rank_pass.num_tiles,
        least_programs=2 * num_multiprocessors(y_TN.device),
    )
    strips = sum(triton.cdiv(width, strip) for width in widths)
    if rank_pass.num_tiles == 0 or strips == 0:
        return
    stage_bytes = rank_pass.max_class * tiles.expand_block * y_TN.element_size()
    tile_bytes = tables.tile_rows * (tiles.expand_block + rank_pass.max_class) * y_TN.element_size()
    stages = fitting_stages(
        tiles.expand_stages, stage_bytes=stage_bytes, fixed_bytes=tile_bytes, limit_bytes=shared_bytes(y_TN.device)
    )
    expand_kernel[(strips, rank_pass.num_tiles)](
        rank_pass.tiles, s_PTC, *three(factors), y_TN, *three([part.column_start for part in parts]), *three(widths),
        y_TN.stride(0), s_PTC.stride(0), s_PTC.stride(1), *three([b.stride(0) for b in factors]),
        PARTS=len(parts), BM=tables.tile_rows, BN=tiles.expand_block, STRIP=strip,
        MAX_R=rank_pass.max_class, ADD=add, STAGES=stages, PRECISION=precision(y_TN), num_warps=tiles.expand_warps,
    )  # fmt: skip


def _filling(tiles: TileChoice, *, width: int, rank_pass: RankPass, device: torch.device) -> TileChoice:
    """Return the tiles of the weight gradients for the number of chunks of a launch."""
    return filling_tiles(
        tiles, width=width, num_chunks=rank_pass.num_chunks, least_programs=3 * num_multiprocessors(device) // 2
    )


def output_side(
    dy_TN: Tensor,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    tiles: TileChoice,
    with_ds: bool = True,
) -> Tensor | None:
    """Put dB into the sinks and return dS [P, T, C] in the dtype of dY, both from one read of dY.

    Without ``with_ds`` dB alone, and None: then no float32 partial sums of dS are written.
    """
    factors, sinks = [part.b_RN for part in parts], [sink_of(part.grad_b_RN) for part in parts]
    widths = [b.shape[1] for b in factors]
    # the columns of a program decide the order of the partial sums of dS
    tiles = tiles if with_ds else _filling(tiles, width=sum(widths), rank_pass=rank_pass, device=dy_TN.device)
    counts = [triton.cdiv(width, tiles.output_block) for width in widths]
    num_rows, num_columns = dy_TN.shape[0], s_PTC.stride(1)
    ds_PTC = dy_TN.new_empty(len(parts), num_rows, num_columns) if with_ds else None
    if rank_pass.num_chunks == 0:
        return ds_PTC
    shape = (sum(counts) if with_ds else 0, num_rows, num_columns)
    ds_partials = dy_TN.new_empty(shape, dtype=torch.float32)
    parts_CN = chunk_parts(dy_TN, rank_pass, sum(widths))
    element = dy_TN.element_size()
    stages = fitting_stages(
        tiles.output_stages,
        stage_bytes=tiles.output_rows * (tiles.output_block + rank_pass.max_class) * element,
        fixed_bytes=tiles.output_block * rank_pass.max_class * element if with_ds else 0,
        limit_bytes=shared_bytes(dy_TN.device),
    )
    output_side_kernel[(rank_pass.num_chunks, sum(counts))](
        rank_pass.chunks, rank_pass.sums, chunk_counters(tables, rank_pass, sum(counts)), dy_TN, s_PTC, *three(factors),
        ds_partials, *three(sinks), parts_CN, *three([part.column_start for part in parts]), *three(widths),
        dy_TN.stride(0), s_PTC.stride(0), s_PTC.stride(1), ds_partials.stride(0),
        *three([b.stride(0) for b in factors]), *three([sink.stride(0) for sink in sinks]), parts_CN.stride(0),
        PARTS=len(parts), BM=tiles.output_rows, BN=tiles.output_block, MAX_R=rank_pass.max_class,
        EVEN=all(width % tiles.output_block == 0 for width in widths), WITH_DS=with_ds,
        PRECISION=precision(dy_TN), num_warps=tiles.output_warps, num_stages=stages,
        # a sum that is scaled and added to a sink at once would round otherwise than one that is left as a part
        enable_fp_fusion=not tables.exact,
    )  # fmt: skip
    if ds_PTC is not None:
        sum_partials(ds_partials, ds_PTC, rank_pass, counts=counts, scaled=True, tables=tables)
    return ds_PTC


def input_side(
    x_TK: Tensor,
    dx_TK: Tensor | None,
    parts: Sequence[LoraPart],
    ds_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice,
    add: bool,
) -> None:
    """Put dA into the sinks; write (or add to) dX unless it is None."""
    if rank_pass.num_chunks == 0:
        return
    factors, sinks = [part.a_RK for part in parts], [sink_of(part.grad_a_RK) for part in parts]
    width = x_TK.shape[1]
    dropout = row_keys_T is not None and tables.has_dropout
    dx = x_TK if dx_TK is None else dx_TK
    parts_CK = chunk_parts(x_TK, rank_pass, width * len(parts))
    tiles = _filling(tiles, width=width, rank_pass=rank_pass, device=x_TK.device)
    rows, block, warps, most_stages = _input_tiles(tiles, with_dx=dx_TK is not None)
    strips = triton.cdiv(width, block)
    stages = fitting_stages(
        most_stages,
        stage_bytes=rows * (block + len(parts) * rank_pass.max_class) * x_TK.element_size(),
        fixed_bytes=len(parts) * block * rank_pass.max_class * x_TK.element_size(),
        limit_bytes=shared_bytes(x_TK.device),
    )
    input_side_kernel[(rank_pass.num_chunks, strips)](
        rank_pass.chunks, rank_pass.sums, chunk_counters(tables, rank_pass, strips), x_TK, ds_PTC, *three(factors), dx,
        *three(sinks), parts_CK, row_keys_T if dropout else x_TK, *_keys(parts), width, x_TK.stride(0), dx.stride(0),
        ds_PTC.stride(0), ds_PTC.stride(1),
        *three([a.stride(0) for a in factors]), *three([sink.stride(0) for sink in sinks]), parts_CK.stride(0),
        PARTS=len(parts), BM=rows, BK=block, MAX_R=rank_pass.max_class,
        EVEN=width % block == 0, ADD=add, WITH_DX=dx_TK is not None, DROPOUT=dropout, EXACT=tables.exact,
        PRECISION=precision(x_TK), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _input_tiles(tiles: TileChoice, *, with_dx: bool) -> tuple[int, int, int, int]:
    """Return rows a step, columns a program, warps and stages of the kernel over X."""
    if with_dx:
        return tiles.input_rows, tiles.input_block, tiles.input_warps, tiles.input_stages
    return tiles.da_rows, tiles.da_block, tiles.da_warps, tiles.da_stages
