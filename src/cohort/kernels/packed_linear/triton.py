"""The grouped path: a fixed number of Triton launches for any number of adapters.

Forward: shrink (one read of X for all siblings), expand. Backward: dB with partial sums of dS (one read of dY),
their
sum, dA with dX (one read of X, one write of dX). Where the frozen product can accumulate, the LoRA term is written
first and the product adds onto it, which saves reading Y (or dX) back.

Shapes:  T rows of the stream · K input width · N output width of one part · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
from torch import Tensor

from cohort.kernels.dropout.triton import as_signed32
from cohort.kernels.packed_linear.choice import TileChoice, choose_tiles, fitting_stages
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, can_accumulate
from cohort.kernels.packed_linear.launch_tables import LaunchTables, RankPass
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.packed_linear.triton_backward import input_side_kernel, output_side_kernel, sum_chunks_kernel
from cohort.kernels.packed_linear.triton_forward import expand_kernel, shrink_kernel, sum_partials_kernel
from cohort.kernels.segments import SegmentTable

__all__ = [
    "expand",
    "grouped_backward",
    "grouped_forward",
    "input_side",
    "launch_tables",
    "output_side",
    "shrink",
    "tiles_for",
]

# A launch takes three pointers of each kind; more siblings than q, k and v take further launches.
MOST_PARTS = 3
SUM_BLOCK = 128


@functools.cache
def _gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """Shared memory a program may take, less some for the compiler's own use."""
    if device.type != "cuda":
        return 1 << 16
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 1 << 16)) - 4096


def tiles_for(x_TK: Tensor, parts: Sequence[LoraPart]) -> TileChoice:
    """Return the tiles that :func:`grouped_forward` uses for ``x`` and ``parts`` unless told otherwise."""
    return choose_tiles(
        _gpu_name(x_TK.device),
        in_features=x_TK.shape[1],
        out_widths=tuple(part.b_RN.shape[1] for part in parts),
        num_rows=x_TK.shape[0],
    )


@functools.lru_cache(maxsize=8)
def launch_tables(segments: SegmentTable, slots: SlotTable, device: torch.device) -> LaunchTables:
    """Return tables for one layout, shared by calls that follow each other with the same layout.

    An executor builds its own :class:`LaunchTables` once per step and passes them, which costs nothing per linear.
    """
    return LaunchTables(segments, slots, device=device)


def _three(values: Sequence[object]) -> tuple[object, object, object]:
    """Fill up to three arguments; kernels read only the first PARTS."""
    return (values[0], values[min(1, len(values) - 1)], values[min(2, len(values) - 1)])


def _groups(parts: Sequence[LoraPart]) -> list[tuple[int, Sequence[LoraPart]]]:
    return [(first, parts[first : first + MOST_PARTS]) for first in range(0, len(parts), MOST_PARTS)]


def _precision(x: Tensor) -> str:
    # float32 is here for checks and small models: exact products, not TF32's ten bits
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _covers(parts: Sequence[LoraPart], width: int) -> bool:
    """Tell whether the parts own every output column, so that writing them writes all of Y."""
    return sum(part.b_RN.shape[1] for part in parts) == width


def _keys(parts: Sequence[LoraPart]) -> tuple[object, ...]:
    return _three([as_signed32(part.module_key) for part in parts])


def grouped_forward(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y [T, N] and the kept intermediates S [P, T, C]."""
    tiles = tiles or tiles_for(x_TK, parts)
    num_columns = tables.num_columns
    s_PTC = x_TK.new_empty(len(parts), x_TK.shape[0], num_columns)
    accumulating = None
    if tiles.lora_first_forward and can_accumulate(frozen) and _covers(parts, frozen.out_features):
        accumulating = frozen
    lora_first = accumulating is not None
    y_TN = x_TK.new_empty(x_TK.shape[0], frozen.out_features) if lora_first else frozen.forward(x_TK)
    for first, group in _groups(parts):
        for index, rank_pass in enumerate(tables.passes):
            s = s_PTC[first : first + len(group), :, 128 * index :]
            shrink(x_TK, group, s, rank_pass, tables=tables, row_keys_T=row_keys_T, tiles=tiles)
            expand(y_TN, group, s, rank_pass, tables=tables, tiles=tiles, add=not lora_first or index > 0)
    if accumulating is not None:
        accumulating.add_forward(x_TK, y_TN)
    return y_TN, s_PTC


def shrink(
    x_TK: Tensor,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice,
    scaled: bool = False,
) -> None:
    """Write S (times the slot's scale if ``scaled``) of every part from one read of X."""
    if rank_pass.num_tiles == 0:
        return
    num_parts, splits = len(parts), tiles.shrink_splits
    num_rows, width = x_TK.shape
    dropout = row_keys_T is not None and tables.has_dropout
    factors = [part.a_RK for part in parts]
    if splits == 1:
        out = s_PTC
    else:
        out = x_TK.new_empty(num_parts * splits, num_rows, rank_pass.max_class, dtype=torch.float32)
    element = x_TK.element_size()
    stage_bytes = tiles.shrink_block * (tables.tile_rows + num_parts * rank_pass.max_class) * element
    stages = fitting_stages(tiles.shrink_stages, stage_bytes=stage_bytes, limit_bytes=_shared_bytes(x_TK.device))
    shrink_kernel[(rank_pass.num_tiles, splits)](
        rank_pass.tiles, x_TK, *_three(factors), out, row_keys_T if dropout else x_TK, *_keys(parts),
        width, x_TK.stride(0), *_three([a.stride(0) for a in factors]), out.stride(0) * splits, out.stride(1),
        out.stride(0),
        PARTS=num_parts, BM=tables.tile_rows, BK=tiles.shrink_block, SPLITS=splits, MAX_R=rank_pass.max_class,
        EVEN=width % tiles.shrink_block == 0, SCALED=scaled and splits == 1, DROPOUT=dropout,
        PRECISION=_precision(x_TK),
        num_warps=tiles.shrink_warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _sum_partials(out, s_PTC, rank_pass, counts=[splits] * num_parts, scaled=scaled, tables=tables)


def _sum_partials(
    partials_CTC: Tensor,
    out_PTC: Tensor,
    rank_pass: RankPass,
    *,
    counts: Sequence[int],
    scaled: bool,
    tables: LaunchTables,
) -> None:
    rows = min(16, tables.tile_rows)
    sum_partials_kernel[(rank_pass.num_tiles, len(counts), tables.tile_rows // rows)](
        rank_pass.tiles, partials_CTC, out_PTC, *_three(counts), partials_CTC.stride(0), partials_CTC.stride(1),
        out_PTC.stride(0), out_PTC.stride(1),
        PARTS=len(counts), ROWS=rows, MAX_R=rank_pass.max_class, SCALED=scaled, num_warps=2,
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
    blocks = sum(triton.cdiv(width, tiles.expand_block) for width in widths)
    if rank_pass.num_tiles == 0 or blocks == 0:
        return
    expand_kernel[(blocks, rank_pass.num_tiles)](
        rank_pass.tiles, s_PTC, *_three(factors), y_TN, *_three([part.column_start for part in parts]), *_three(widths),
        y_TN.stride(0), s_PTC.stride(0), s_PTC.stride(1), *_three([b.stride(0) for b in factors]),
        PARTS=len(parts), BM=tables.tile_rows, BN=tiles.expand_block, MAX_R=rank_pass.max_class, ADD=add,
        PRECISION=_precision(y_TN), num_warps=tiles.expand_warps, num_stages=1,
    )  # fmt: skip


def grouped_backward(
    dy_TN: Tensor,
    *,
    x_TK: Tensor,
    s_PTC: Tensor,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    with_dx: bool = True,
    tiles: TileChoice | None = None,
) -> Tensor | None:
    """Add every slot's dA and dB to the parts' sinks; return dx [T, K], or None without ``with_dx``."""
    tiles = tiles or tiles_for(x_TK, parts)
    if dy_TN.stride(1) != 1:
        dy_TN = dy_TN.contiguous()
    accumulating = frozen if tiles.lora_first_backward and can_accumulate(frozen) else None
    dx_TK = None
    if with_dx:
        dx_TK = frozen.grad_input(dy_TN) if accumulating is None else torch.empty_like(x_TK)
    add = accumulating is None
    for first, group in _groups(parts):
        for index, rank_pass in enumerate(tables.passes):
            s = s_PTC[first : first + len(group), :, 128 * index :]
            ds_PTC = output_side(dy_TN, group, s, rank_pass, tables=tables, tiles=tiles)
            input_side(
                x_TK, dx_TK, group, ds_PTC, rank_pass, tables=tables, row_keys_T=row_keys_T, tiles=tiles, add=add
            )
            add = True
    if accumulating is not None and dx_TK is not None:
        accumulating.add_grad_input(dy_TN, dx_TK)
    return dx_TK


def _partials(like: Tensor, rank_pass: RankPass, width: int) -> Tensor:
    """Float32 gradients of chunks that need the second stage, [chunks, padded rank, width]; a scrap where there are
    none.
    """
    if rank_pass.num_partials == 0:
        return like.new_empty(1, 1, 16, dtype=torch.float32)
    return like.new_empty(rank_pass.num_partials, rank_pass.max_class, width, dtype=torch.float32)


def _sum_chunks(partials_CRN: Tensor, sinks: Sequence[Tensor], rank_pass: RankPass) -> None:
    if rank_pass.num_sums == 0:
        return
    widths = [sink.shape[1] for sink in sinks]
    blocks = sum(triton.cdiv(width, SUM_BLOCK) for width in widths)
    sum_chunks_kernel[(rank_pass.num_sums, blocks, rank_pass.max_class // 16)](
        rank_pass.sums, partials_CRN, *_three(sinks), *_three(widths), partials_CRN.stride(0), partials_CRN.stride(1),
        *_three([sink.stride(0) for sink in sinks]), PARTS=len(sinks), BN=SUM_BLOCK, num_warps=2,
    )  # fmt: skip


def output_side(
    dy_TN: Tensor,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    *,
    tables: LaunchTables,
    tiles: TileChoice,
    ds_apart: bool = False,
) -> Tensor:
    """Add dB to the sinks and return dS [P, T, C] in the dtype of dY.

    ``ds_apart`` computes dS by shrink launches of its own: dY is read twice but no float32 partial sums are written.
    """
    factors, sinks = [part.b_RN for part in parts], [_sink(part.grad_b_RN) for part in parts]
    widths = [b.shape[1] for b in factors]
    counts = [triton.cdiv(width, tiles.output_block) for width in widths]
    num_rows, num_columns = dy_TN.shape[0], s_PTC.stride(1)
    ds_PTC = dy_TN.new_empty(len(parts), num_rows, num_columns)
    if rank_pass.num_chunks == 0:
        return ds_PTC
    shape = (0, num_rows, num_columns) if ds_apart else (sum(counts), num_rows, num_columns)
    ds_partials = dy_TN.new_empty(shape, dtype=torch.float32)
    partials = _partials(dy_TN, rank_pass, sum(widths))
    stages = fitting_stages(
        tiles.output_stages,
        stage_bytes=tiles.output_rows * (tiles.output_block + rank_pass.max_class) * dy_TN.element_size(),
        fixed_bytes=tiles.output_block * rank_pass.max_class * dy_TN.element_size(),
        limit_bytes=_shared_bytes(dy_TN.device),
    )
    output_side_kernel[(rank_pass.num_chunks, sum(counts))](
        rank_pass.chunks, dy_TN, s_PTC, *_three(factors), ds_partials, *_three(sinks), partials,
        *_three([part.column_start for part in parts]), *_three(widths), dy_TN.stride(0), s_PTC.stride(0),
        s_PTC.stride(1),
        ds_partials.stride(0), *_three([b.stride(0) for b in factors]), *_three([sink.stride(0) for sink in sinks]),
        partials.stride(0), partials.stride(1),
        PARTS=len(parts), BM=tiles.output_rows, BN=tiles.output_block, MAX_R=rank_pass.max_class,
        EVEN=all(width % tiles.output_block == 0 for width in widths), WITH_DS=not ds_apart,
        PRECISION=_precision(dy_TN),
        num_warps=tiles.output_warps, num_stages=stages,
    )  # fmt: skip
    if ds_apart:
        for index, part in enumerate(parts):
            shrink(
                dy_TN[:, part.columns], [replace(part, a_RK=part.b_RN)], ds_PTC[index : index + 1], rank_pass,
                tables=tables, row_keys_T=None, tiles=tiles, scaled=True,
            )  # fmt: skip
    else:
        _sum_partials(ds_partials, ds_PTC, rank_pass, counts=counts, scaled=True, tables=tables)
    _sum_chunks(partials, sinks, rank_pass)
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
    """Add dA to the sinks; write (or add to) dX unless it is None."""
    if rank_pass.num_chunks == 0:
        return
    factors, sinks = [part.a_RK for part in parts], [_sink(part.grad_a_RK) for part in parts]
    width = x_TK.shape[1]
    dropout = row_keys_T is not None and tables.has_dropout
    dx = x_TK if dx_TK is None else dx_TK
    partials = _partials(x_TK, rank_pass, width * len(parts))
    stages = fitting_stages(
        tiles.input_stages,
        stage_bytes=tiles.input_rows * (tiles.input_block + len(parts) * rank_pass.max_class) * x_TK.element_size(),
        fixed_bytes=len(parts) * tiles.input_block * rank_pass.max_class * x_TK.element_size(),
        limit_bytes=_shared_bytes(x_TK.device),
    )
    input_side_kernel[(rank_pass.num_chunks, triton.cdiv(width, tiles.input_block))](
        rank_pass.chunks, x_TK, ds_PTC, *_three(factors), dx, *_three(sinks), partials, row_keys_T if dropout else x_TK,
        *_keys(parts), width, x_TK.stride(0), dx.stride(0), ds_PTC.stride(0), ds_PTC.stride(1),
        *_three([a.stride(0) for a in factors]), *_three([sink.stride(0) for sink in sinks]), partials.stride(0),
        partials.stride(1),
        PARTS=len(parts), BM=tiles.input_rows, BK=tiles.input_block, MAX_R=rank_pass.max_class,
        EVEN=width % tiles.input_block == 0, ADD=add, WITH_DX=dx_TK is not None, DROPOUT=dropout,
        PRECISION=_precision(x_TK), num_warps=tiles.input_warps, num_stages=stages,
    )  # fmt: skip
    _sum_chunks(partials, sinks, rank_pass)


def _sink(gradient: Tensor | None) -> Tensor:
    assert gradient is not None, "backward needs sinks"
    return gradient
