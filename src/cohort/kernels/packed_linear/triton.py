"""The grouped path: a fixed number of Triton launches for any number of adapters, in the order chosen for the linear.

The LoRA term enters Y (and dX) in one of several places, see :class:`~.choice.tiles.TermPlace`: inside a frozen
product of our own, as further columns of its operands, before a frozen product that accumulates onto it, or after it.

Shapes:  T rows of the stream · K input width · N output width of one part · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.packed_linear.choice.augmented import PaddedRows, augmented_columns, padded_rows
from cohort.kernels.packed_linear.choice.tiles import EXACT_TILES, TermPlace, TileChoice, choose_tiles
from cohort.kernels.packed_linear.exact import exact_backward, exact_forward
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, can_accumulate, can_augment, plain_weight
from cohort.kernels.packed_linear.hopper.launch import describe_inside, hopper_product, hopper_takes
from cohort.kernels.packed_linear.launch.launches import (
    MOST_PARTS,
    expand,
    input_side,
    output_side,
    output_side_ds,
    shrink,
)
from cohort.kernels.packed_linear.launch.tables import LaunchTables, RankPass
from cohort.kernels.packed_linear.portable.augmented import Spread, copy_factor
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = [
    "augmented_product",
    "begin_augmented",
    "describe_inside",
    "grouped_backward",
    "grouped_forward",
    "launch_tables",
    "room_for",
    "tiles_for",
]


# Exact numerics take the tiles of long streams at every length.
EXACT_ROWS = 1 << 30


@functools.cache
def _gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def tiles_for(x_TK: Tensor, parts: Sequence[LoraPart]) -> TileChoice:
    """Return the tiles that :func:`grouped_forward` uses for ``x`` and ``parts`` unless told otherwise."""
    return _tiles(x_TK, parts, num_rows=x_TK.shape[0], width=x_TK.shape[1])


def _tiles(like: Tensor, parts: Sequence[LoraPart], *, num_rows: int, width: int) -> TileChoice:
    if like.dtype == torch.float32:
        return EXACT_TILES
    widths = tuple(part.b_RN.shape[1] for part in parts)
    return choose_tiles(_gpu_name(like.device), in_features=width, out_widths=widths, num_rows=num_rows)


def room_for(
    like: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    tiles: TileChoice | None = None,
) -> PaddedRows | None:
    """Return empty rows [T, K] with room behind them, for a linear's input; None where its product is not augmented.

    Args:
        frozen, parts: The linear.
    """
    width = frozen.in_features
    if tables.exact:
        return None
    tiles = tiles or _tiles(like, parts, num_rows=tables.num_rows, width=width)
    columns = augmented_columns(frozen, parts, tables=tables, tiles=tiles)
    return padded_rows(like, num_rows=tables.num_rows, width=width, num_columns=columns) if columns else None


def begin_augmented(room: PaddedRows, *, frozen: FrozenProduct, part: LoraPart) -> Spread:
    """Copy B behind W and return where S is to be spread."""
    assert can_augment(frozen), "room_for said so"
    spare_NC = frozen.spare_NC
    assert spare_NC is not None, "can_augment said so"
    return copy_factor(part.b_RN, spare_NC, room.spare_TC)


def augmented_product(room: PaddedRows, *, frozen: FrozenProduct) -> Tensor:
    """Return y [T, N] once the rows and what is behind them are written."""
    assert can_augment(frozen), "room_for said so"
    return frozen.forward_augmented(room.wide_TX)


@functools.lru_cache(maxsize=8)
def launch_tables(segments: SegmentTable, slots: SlotTable, device: torch.device) -> LaunchTables:
    """Return tables for one layout, shared by calls that follow each other with the same layout.

    An executor builds its own :class:`LaunchTables` once per step and passes them, which costs nothing per linear.
    """
    return LaunchTables(segments, slots, device=device)


def _groups(parts: Sequence[LoraPart]) -> list[tuple[int, Sequence[LoraPart]]]:
    return [(first, parts[first : first + MOST_PARTS]) for first in range(0, len(parts), MOST_PARTS)]


def _covers(parts: Sequence[LoraPart], width: int) -> bool:
    """Return whether the parts own every output column, so that writing them writes all of Y."""
    return sum(part.b_RN.shape[1] for part in parts) == width


def inner_weight(
    x_TK: Tensor, frozen: FrozenProduct, parts: Sequence[LoraPart], *, tables: LaunchTables, forward: bool
) -> Tensor | None:
    """Return the weight for a product that takes the LoRA term inside, or None where it cannot.

    ``x`` is what the product multiplies: X (``forward``) or dY.
    """
    weight = plain_weight(frozen)
    if weight is None or len(tables.passes) > 1:
        return None
    width = weight.shape[0 if forward else 1]
    return weight if hopper_takes(x_TK, weight_NK=weight, parts=parts, tables=tables, width=width) else None


def grouped_forward(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice | None = None,
    room: PaddedRows | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y [T, N] and the kept intermediates S [P, T, C]; with the ``room`` that ``x`` is in the product is
    augmented.
    """
    if tables.exact:
        tiles = tiles or _tiles(x_TK, parts, num_rows=EXACT_ROWS, width=x_TK.shape[1])
        return exact_forward(x_TK, frozen=frozen, parts=parts, tables=tables, row_keys_T=row_keys_T, tiles=tiles)
    tiles = tiles or tiles_for(x_TK, parts)
    s_PTC = x_TK.new_empty(len(parts), x_TK.shape[0], tables.num_columns)
    if room is not None:
        spread = begin_augmented(room, frozen=frozen, part=parts[0])
        shrink(x_TK, parts, s_PTC, tables.passes[0], tables=tables, row_keys_T=row_keys_T, tiles=tiles, spread=spread)
        return augmented_product(room, frozen=frozen), s_PTC
    place = tiles.place_in_y
    if place is TermPlace.INSIDE:
        weight = inner_weight(x_TK, frozen, parts, tables=tables, forward=True)
        if weight is not None:
            shrink(x_TK, parts, s_PTC, tables.passes[0], tables=tables, row_keys_T=row_keys_T, tiles=tiles)
            y_TN = x_TK.new_empty(x_TK.shape[0], frozen.out_features)
            hopper_product(x_TK, weight, y_TN, parts=parts, s_PTC=s_PTC, rank_pass=tables.passes[0], forward=True)
            return y_TN, s_PTC
    accumulating = None
    if place is not TermPlace.AFTER and can_accumulate(frozen) and _covers(parts, frozen.out_features):
        accumulating = frozen
    before = accumulating is not None
    y_TN = x_TK.new_empty(x_TK.shape[0], frozen.out_features) if before else frozen.forward(x_TK)
    for first, group in _groups(parts):
        for index, rank_pass in enumerate(tables.passes):
            s = s_PTC[first : first + len(group), :, 128 * index :]
            shrink(x_TK, group, s, rank_pass, tables=tables, row_keys_T=row_keys_T, tiles=tiles)
            expand(y_TN, group, s, rank_pass, tables=tables, tiles=tiles, add=not before or index > 0)
    if accumulating is not None:
        accumulating.add_forward(x_TK, y_TN)
    return y_TN, s_PTC


@dataclass(frozen=True, kw_only=True)
class _Backward:
    """What every launch of one backward pass needs."""

    x_TK: Tensor
    dy_TN: Tensor
    s_PTC: Tensor
    parts: Sequence[LoraPart]
    tables: LaunchTables
    row_keys_T: Tensor | None
    tiles: TileChoice


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
    """Put every slot's dA and dB into the parts' sinks; return dx [T, K], or None without ``with_dx``."""
    if dy_TN.stride(1) != 1:
        dy_TN = dy_TN.contiguous()
    if tables.exact:
        return exact_backward(
            dy_TN,
            x_TK=x_TK,
            s_PTC=s_PTC,
            frozen=frozen,
            parts=parts,
            tables=tables,
            row_keys_T=row_keys_T,
            with_dx=with_dx,
            tiles=tiles or _tiles(x_TK, parts, num_rows=EXACT_ROWS, width=x_TK.shape[1]),
        )
    tiles = tiles or tiles_for(x_TK, parts)
    work = _Backward(
        x_TK=x_TK, dy_TN=dy_TN, s_PTC=s_PTC, parts=parts, tables=tables, row_keys_T=row_keys_T, tiles=tiles
    )
    # dropout masks the LoRA term of dX feature by feature and sibling by sibling, which a product's tile cannot hold
    dropped = row_keys_T is not None and tables.has_dropout
    if with_dx and not dropped and tiles.term_backward is TermPlace.INSIDE:
        weight = inner_weight(dy_TN, frozen, parts, tables=tables, forward=False)
        if weight is not None:
            return _backward_inside(work, weight)
    return _backward_apart(work, frozen, with_dx=with_dx)


def _backward_inside(work: _Backward, weight_NK: Tensor) -> Tensor:
    """DX with its LoRA term in one product and the weight gradients around it."""
    parts, tables, tiles = work.parts, work.tables, work.tiles
    rank_pass = tables.passes[0]
    dx_TK = torch.empty_like(work.x_TK)
    ds_PTC = _output_side(work, parts, work.s_PTC, rank_pass)
    hopper_product(work.dy_TN, weight_NK, dx_TK, parts=parts, s_PTC=ds_PTC, rank_pass=rank_pass, forward=False)
    input_side(
        work.x_TK, None, parts, ds_PTC, rank_pass, tables=tables, row_keys_T=work.row_keys_T, tiles=tiles, add=False
    )
    return dx_TK


def _backward_apart(work: _Backward, frozen: FrozenProduct, *, with_dx: bool) -> Tensor | None:
    """DX with its LoRA term written by the kernel that reads X, before or after the frozen product."""
    dy, tables, tiles = work.dy_TN, work.tables, work.tiles
    accumulating = frozen if tiles.term_backward is not TermPlace.AFTER and can_accumulate(frozen) else None
    dx_TK = None
    if with_dx:
        dx_TK = frozen.grad_input(dy) if accumulating is None else torch.empty_like(work.x_TK)
    add = accumulating is None
    for first, group in _groups(work.parts):
        for index, rank_pass in enumerate(tables.passes):
            s = work.s_PTC[first : first + len(group), :, 128 * index :]
            ds_PTC = _output_side(work, group, s, rank_pass)
            input_side(
                work.x_TK, dx_TK, group, ds_PTC, rank_pass, tables=tables, row_keys_T=work.row_keys_T, tiles=tiles,
                add=add,
            )  # fmt: skip
            add = True
    if accumulating is not None and dx_TK is not None:
        accumulating.add_grad_input(dy, dx_TK)
    return dx_TK


def _output_side(work: _Backward, parts: Sequence[LoraPart], s_PTC: Tensor, rank_pass: RankPass) -> Tensor:
    """Put dB into the sinks and return dS, from one read of dY or from two."""
    dy, tables, tiles = work.dy_TN, work.tables, work.tiles
    if tiles.ds_apart:
        ds_PTC = output_side_ds(dy, parts, rank_pass, tables=tables, tiles=tiles)
        output_side(dy, parts, s_PTC, rank_pass, tables=tables, tiles=tiles, with_ds=False)
        return ds_PTC
    made = output_side(dy, parts, s_PTC, rank_pass, tables=tables, tiles=tiles)
    assert made is not None, "dS was asked for"
    return made
