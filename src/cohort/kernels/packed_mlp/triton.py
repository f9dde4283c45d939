"""The fused path on a GPU: two passes over the feed-forward width, besides the frozen products.

Forward: shrink of x, frozen gate-and-up product G, activation with the down shrink, expand of down and its frozen
product on top. Backward: output side of down, frozen D = dY W_down, one pass that turns D into dG and leaves every
gradient on the way, input side of gate and up and the frozen product on top. What LoRA adds to G and to D, and what the
down adapter reads, never goes to memory.

Shapes:  T rows of the stream · D hidden width · F feed-forward width · C columns of S (padded rank)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from cohort.kernels.dropout.triton import as_signed32
from cohort.kernels.packed_linear.choice.augmented import PaddedRows
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice, fitting_stages
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, can_accumulate, can_take_gradient_codes
from cohort.kernels.packed_linear.hopper.launch import hopper_product
from cohort.kernels.packed_linear.launch.launches import expand, input_side, output_side, output_side_ds, shrink
from cohort.kernels.packed_linear.launch.support import (
    chunk_counters,
    chunk_parts,
    precision,
    shared_bytes,
    sink_of,
    sum_partials,
)
from cohort.kernels.packed_linear.launch.tables import LaunchTables, RankPass
from cohort.kernels.packed_linear.portable.augmented import Spread
from cohort.kernels.packed_linear.portable.rounding import Rounding, begin_rounding
from cohort.kernels.packed_linear.tables import LoraPart
from cohort.kernels.packed_linear.triton import augmented_product, begin_augmented, inner_weight, room_for, tiles_for
from cohort.kernels.packed_mlp.choice import MlpTiles, default_tiles
from cohort.kernels.packed_mlp.triton_kernels import activate_kernel, gradient_kernel

__all__ = ["LEAST_ROUNDED_ROWS", "activate", "gradients", "mlp_backward", "mlp_forward"]

# The shrink that also writes dG's codes takes 79 us less than a pass of their own at 8,192 rows of 28,672 columns, and
# 14 us more at 1,024 (results/fp8_gradient.json): its few programs are then busy for longer. The codes are the same.
LEAST_ROUNDED_ROWS = 2048


def mlp_forward(
    x_TD: Tensor,
    *,
    gate_up: FrozenProduct,
    gate_up_parts: Sequence[LoraPart],
    down: FrozenProduct,
    down_part: LoraPart,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: MlpTiles | None = None,
    down_tiles: TileChoice | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return y [T, D] and what backward needs: G [T, 2F] (frozen alone), S of gate and up [2, T, C], S of down
    [1, T, C].

    ``down_tiles`` are those of the down product, if not the measured ones.
    """
    (rank_pass,) = tables.passes
    s_PTC = x_TD.new_empty(2, x_TD.shape[0], tables.num_columns)
    shrink(
        x_TD,
        gate_up_parts,
        s_PTC,
        rank_pass,
        tables=tables,
        row_keys_T=row_keys_T,
        tiles=tiles_for(x_TD, gate_up_parts),
    )
    g_TF = gate_up.forward(x_TD)
    room = room_for(g_TF, frozen=down, parts=[down_part], tables=tables, tiles=down_tiles)
    spread = None if room is None else begin_augmented(room, frozen=down, part=down_part)
    act_TF, s_down_PTC = activate(
        g_TF,
        s_PTC,
        gate_up_parts=gate_up_parts,
        down_part=down_part,
        tables=tables,
        row_keys_T=row_keys_T,
        tiles=tiles or default_tiles(),
        room=room,
        spread=spread,
    )
    if room is not None:
        y_TD = augmented_product(room, frozen=down)
    else:
        own = down_tiles or tiles_for(act_TF, [down_part])
        y_TD = _down_product(act_TF, s_down_PTC, down=down, part=down_part, tables=tables, tiles=own)
    return y_TD, (g_TF, s_PTC, s_down_PTC)


def _down_product(
    act_TF: Tensor, s_PTC: Tensor, *, down: FrozenProduct, part: LoraPart, tables: LaunchTables, tiles: TileChoice
) -> Tensor:
    """Return the down product with its LoRA term, which enters where the packed linear would let it."""
    (rank_pass,) = tables.passes
    weight = inner_weight(act_TF, down, [part], tables=tables, forward=True)
    if tiles.place_in_y is TermPlace.INSIDE and weight is not None:
        y_TD = act_TF.new_empty(act_TF.shape[0], down.out_features)
        hopper_product(act_TF, weight, y_TD, parts=[part], s_PTC=s_PTC, rank_pass=rank_pass, forward=True)
        return y_TD
    accumulating = down if tiles.place_in_y is not TermPlace.AFTER and can_accumulate(down) else None
    y_TD = act_TF.new_empty(act_TF.shape[0], down.out_features) if accumulating is not None else down.forward(act_TF)
    expand(y_TD, [part], s_PTC, rank_pass, tables=tables, tiles=tiles, add=accumulating is None)
    if accumulating is not None:
        accumulating.add_forward(act_TF, y_TD)
    return y_TD


def activate(
    g_TF: Tensor,
    s_PTC: Tensor,
    *,
    gate_up_parts: Sequence[LoraPart],
    down_part: LoraPart,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: MlpTiles,
    room: PaddedRows | None = None,
    spread: Spread | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``silu(gate) * up`` [T, F], in ``room`` where there is some, and S of down [1, T, C] in one read of G.

    ``spread`` S of down as well.
    """
    (rank_pass,) = tables.passes
    gate, up = gate_up_parts
    num_rows, width = g_TF.shape[0], g_TF.shape[1] // 2
    act_TF = g_TF.new_empty(num_rows, width) if room is None else room.rows_TK
    s_down_PTC = g_TF.new_empty(1, num_rows, tables.num_columns)
    if rank_pass.num_tiles == 0:
        return act_TF, s_down_PTC
    strips = triton.cdiv(width, tiles.forward_strip)
    partials = g_TF.new_empty(strips, num_rows, tables.num_columns, dtype=torch.float32)
    dropout = row_keys_T is not None and tables.has_dropout
    for rank_class in _classes(rank_pass):
        own = tiles.by_class[rank_class]
        stages = fitting_stages(
            own.forward_stages,
            stage_bytes=own.forward_block * (2 * tables.tile_rows + 3 * rank_class) * g_TF.element_size(),
            fixed_bytes=2 * tables.tile_rows * (own.forward_block + rank_class) * g_TF.element_size(),
            limit_bytes=shared_bytes(g_TF.device),
        )
        activate_kernel[(strips, rank_pass.num_tiles)](
            rank_pass.tiles, g_TF, s_PTC, gate.b_RN, up.b_RN, down_part.a_RK, act_TF, partials,
            row_keys_T if dropout else g_TF, as_signed32(down_part.module_key), width, g_TF.stride(0), s_PTC.stride(0),
            s_PTC.stride(1), gate.b_RN.stride(0), up.b_RN.stride(0), down_part.a_RK.stride(0), act_TF.stride(0),
            partials.stride(0), partials.stride(1),
            BM=tables.tile_rows, BN=own.forward_block, BR=rank_class, STRIP=tiles.forward_strip, STAGES=stages,
            EVEN=width % own.forward_block == 0, FREE_ROWS=rank_class == 16, DROPOUT=dropout,
            PRECISION=precision(g_TF), num_warps=own.forward_warps,
        )  # fmt: skip
    sum_partials(partials, s_down_PTC, rank_pass, counts=[strips], scaled=False, tables=tables, spread=spread)
    return act_TF, s_down_PTC


def _classes(rank_pass: RankPass) -> list[int]:
    """Padded ranks that some slot may have: one launch each, with the rows of no adapter in the first."""
    return [rank_class for rank_class in (16, 32, 64, 128) if rank_class <= rank_pass.max_class]


def mlp_backward(
    dy_TD: Tensor,
    *,
    x_TD: Tensor,
    g_TF: Tensor,
    s_PTC: Tensor,
    s_down_PTC: Tensor,
    gate_up: FrozenProduct,
    gate_up_parts: Sequence[LoraPart],
    down: FrozenProduct,
    down_part: LoraPart,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    with_dx: bool = True,
    tiles: MlpTiles | None = None,
) -> Tensor | None:
    """Add dA and dB of gate, up and down to their sinks; return dx [T, D], or None without ``with_dx``."""
    if dy_TD.stride(1) != 1:
        dy_TD = dy_TD.contiguous()
    d_TF = down.grad_input(dy_TD)
    ds_down_PTC = _output_side(dy_TD, [down_part], s_down_PTC, tables=tables, tiles=tiles_for(d_TF, [down_part]))
    tiles = tiles or default_tiles()
    rounding = _rounding(gate_up, g_TF) if with_dx and tiles.with_db else None
    dg_TF, ds_PTC = gradients(
        g_TF,
        d_TF,
        x_TD=x_TD,
        s_PTC=s_PTC,
        ds_down_PTC=ds_down_PTC,
        gate_up_parts=gate_up_parts,
        down_part=down_part,
        tables=tables,
        row_keys_T=row_keys_T,
        tiles=tiles,
        rounding=rounding,
    )
    return _input_gradient(
        dg_TF,
        ds_PTC,
        rounding=rounding,
        x_TD=x_TD,
        gate_up=gate_up,
        parts=gate_up_parts,
        tables=tables,
        row_keys_T=row_keys_T,
        with_dx=with_dx,
        tiles=tiles_for(x_TD, gate_up_parts),
    )


def _rounding(gate_up: FrozenProduct, g_TF: Tensor) -> Rounding | None:
    """Return room for the codes of dG where its product multiplies codes, and a pass of their own would take longer."""
    if g_TF.shape[0] < LEAST_ROUNDED_ROWS or not can_take_gradient_codes(gate_up):
        return None
    factors_F = gate_up.gradient_factors(g_TF)
    return None if factors_F is None else begin_rounding(g_TF, factors_N=factors_F)


def _input_gradient(
    dg_TF: Tensor,
    ds_PTC: Tensor,
    *,
    rounding: Rounding | None,
    x_TD: Tensor,
    gate_up: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    with_dx: bool,
    tiles: TileChoice,
) -> Tensor | None:
    """Return dx, its LoRA term where the packed linear would let it in; put dA of gate and up into their sinks."""
    (rank_pass,) = tables.passes
    inside = tiles.term_backward is TermPlace.INSIDE and not (row_keys_T is not None and tables.has_dropout)
    weight = None
    if inside and with_dx:
        weight = inner_weight(dg_TF, gate_up, parts, tables=tables, forward=False)
    accumulating = gate_up if tiles.term_backward is not TermPlace.AFTER and can_accumulate(gate_up) else None
    dx_TD = None
    if with_dx:
        if weight is not None or accumulating is not None:
            dx_TD = torch.empty_like(x_TD)
        elif rounding is not None and can_take_gradient_codes(gate_up):
            dx_TD = gate_up.grad_input(dg_TF, rounding.rows)
        else:
            dx_TD = gate_up.grad_input(dg_TF)
    if weight is not None and dx_TD is not None:
        hopper_product(dg_TF, weight, dx_TD, parts=parts, s_PTC=ds_PTC, rank_pass=rank_pass, forward=False)
    input_side(
        x_TD,
        None if weight is not None else dx_TD,
        parts,
        ds_PTC,
        rank_pass,
        tables=tables,
        row_keys_T=row_keys_T,
        tiles=tiles,
        add=accumulating is None,
    )
    if weight is None and accumulating is not None and dx_TD is not None:
        accumulating.add_grad_input(dg_TF, dx_TD)
    return dx_TD


def gradients(
    g_TF: Tensor,
    d_TF: Tensor,
    *,
    x_TD: Tensor,
    s_PTC: Tensor,
    ds_down_PTC: Tensor,
    gate_up_parts: Sequence[LoraPart],
    down_part: LoraPart,
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: MlpTiles,
    rounding: Rounding | None = None,
) -> tuple[Tensor, Tensor]:
    """Return dG [T, 2F] and dS of gate and up [2, T, C]; add dB of gate and up and dA of down to their sinks.

    ``d_TF`` is dY W_down, the frozen share of the activation's gradient. ``rounding`` gets the codes of dG, which takes
    ``tiles.with_db``: what reads dG again then is the shrink that makes dS.
    """
    (rank_pass,) = tables.passes
    gate, up = gate_up_parts
    width = d_TF.shape[1]
    dg_TF = torch.empty_like(g_TF)
    sinks = [sink_of(down_part.grad_a_RK), sink_of(gate.grad_b_RN), sink_of(up.grad_b_RN)]
    own_sinks = sinks if tiles.with_db else sinks[:1]
    parts = chunk_parts(g_TF, rank_pass, len(own_sinks) * width)
    dropout = row_keys_T is not None and tables.has_dropout
    element = g_TF.element_size()
    for rank_class in _classes(rank_pass) if rank_pass.num_chunks else ():
        own = tiles.by_class[rank_class]
        block, step_rows = own.backward_block, own.backward_rows
        stages = fitting_stages(
            own.backward_stages,
            stage_bytes=3 * step_rows * (block + rank_class) * element,
            fixed_bytes=3 * block * (step_rows + rank_class) * element,
            limit_bytes=shared_bytes(g_TF.device),
        )
        strips = triton.cdiv(width, block)
        gradient_kernel[(rank_pass.num_chunks, strips)](
            rank_pass.chunks, rank_pass.sums, chunk_counters(tables, rank_pass, strips), g_TF, d_TF, dg_TF, s_PTC,
            ds_down_PTC, gate.b_RN, up.b_RN, down_part.a_RK, *sinks[1:], sinks[0], parts,
            row_keys_T if dropout else g_TF, as_signed32(down_part.module_key), width, g_TF.stride(0),
            d_TF.stride(0), dg_TF.stride(0), s_PTC.stride(0), s_PTC.stride(1), gate.b_RN.stride(0), up.b_RN.stride(0),
            down_part.a_RK.stride(0), *[sink.stride(0) for sink in sinks[1:]], sinks[0].stride(0),
            parts.stride(0), *((g_TF, g_TF) if rounding is None else (rounding.sizes_T, rounding.factors_N)),
            BM=step_rows, BN=block, BR=rank_class, STAGES=stages, EVEN=width % block == 0, FREE_ROWS=rank_class == 16,
            WITH_DB=tiles.with_db, SIZES=rounding is not None, DROPOUT=dropout, PRECISION=precision(g_TF),
            num_warps=own.backward_warps,
        )  # fmt: skip
    choice = tiles_for(x_TD, gate_up_parts)
    if tiles.with_db:
        return dg_TF, output_side_ds(dg_TF, gate_up_parts, rank_pass, tables=tables, tiles=choice, rounding=rounding)
    return dg_TF, _output_side(dg_TF, gate_up_parts, s_PTC, tables=tables, tiles=choice)


def _output_side(
    dy_TN: Tensor, parts: Sequence[LoraPart], s_PTC: Tensor, *, tables: LaunchTables, tiles: TileChoice
) -> Tensor:
    """Put dB into the sinks and return dS [P, T, C], in one read of dY or, where chosen, in two."""
    (rank_pass,) = tables.passes
    if tiles.ds_apart:
        output_side(dy_TN, parts, s_PTC, rank_pass, tables=tables, tiles=tiles, with_ds=False)
        return output_side_ds(dy_TN, parts, rank_pass, tables=tables, tiles=tiles)
    ds_PTC = output_side(dy_TN, parts, s_PTC, rank_pass, tables=tables, tiles=tiles)
    assert ds_PTC is not None, "dS was asked for"
    return ds_PTC
