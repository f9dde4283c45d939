"""The grouped path of exact numerics: the same launches in the same order for a slot, whatever shares its pass.

The LoRA term enters Y inside Hopper's product, or behind a product that is exact by itself; in dX it is added behind
one. Which of both follows from the linear alone. Chunks of weight gradients are cut from single samples and added up
from the sink on in their order (:class:`~.launch.tables.LaunchTables`), so a step may be cut into passes anywhere.

Shapes:  T rows of the stream · K input width · N output width of one part · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, plain_weight
from cohort.kernels.packed_linear.hopper.launch import COLUMNS, exact_hopper_product, hopper_reads
from cohort.kernels.packed_linear.launch.launches import (
    MOST_PARTS,
    expand,
    input_side,
    output_side,
    output_side_ds,
    shrink,
)
from cohort.kernels.packed_linear.launch.support import is_descriptable
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["exact_backward", "exact_forward"]


def exact_forward(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    tiles: TileChoice,
) -> tuple[Tensor, Tensor]:
    """Return y [T, N] and the kept intermediates S [P, T, C]. The product of ``frozen`` must be exact."""
    s_PTC = x_TK.new_empty(len(parts), x_TK.shape[0], tables.num_columns)
    weight = _inner_weight(frozen, parts, tables=tables)
    y_TN = frozen.forward(x_TK) if weight is None else x_TK.new_empty(x_TK.shape[0], frozen.out_features)
    for first in range(0, len(parts), MOST_PARTS):
        group = parts[first : first + MOST_PARTS]
        for index, rank_pass in enumerate(tables.passes):
            s = s_PTC[first : first + len(group), :, 128 * index :]
            shrink(x_TK, group, s, rank_pass, tables=tables, row_keys_T=row_keys_T, tiles=tiles)
            if weight is not None and index == 0:
                exact_hopper_product(x_TK, weight, y_TN, parts=parts, s_PTC=s, rank_pass=rank_pass, forward=True)
            else:
                expand(y_TN, group, s, rank_pass, tables=tables, tiles=tiles, add=True)
    return y_TN, s_PTC


def _inner_weight(frozen: FrozenProduct, parts: Sequence[LoraPart], *, tables: LaunchTables) -> Tensor | None:
    """Return the weight for a product that takes the term inside; None where the linear or the device has none."""
    weight = plain_weight(frozen)
    if weight is None or not hopper_reads(weight) or len(parts) > MOST_PARTS or not tables.slots_are_aligned:
        return None
    suits = all(
        part.b_RN.dtype == weight.dtype and is_descriptable(part.b_RN) and part.column_start % COLUMNS == 0
        for part in parts
    )
    in_order = all(a.columns.stop <= b.column_start for a, b in itertools.pairwise(parts))
    return weight if suits and in_order and weight.shape[0] * weight.element_size() % 16 == 0 else None


def exact_backward(
    dy_TN: Tensor,
    *,
    x_TK: Tensor,
    s_PTC: Tensor,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    row_keys_T: Tensor | None,
    with_dx: bool,
    tiles: TileChoice,
) -> Tensor | None:
    """Put every slot's dA and dB into the parts' sinks; return dx [T, K], or None without ``with_dx``."""
    dx_TK = frozen.grad_input(dy_TN) if with_dx else None
    for first in range(0, len(parts), MOST_PARTS):
        group = parts[first : first + MOST_PARTS]
        for index, rank_pass in enumerate(tables.passes):
            s = s_PTC[first : first + len(group), :, 128 * index :]
            # always by a shrink of its own: partial sums would be cut by the columns of a program
            ds_PTC = output_side_ds(dy_TN, group, rank_pass, tables=tables, tiles=tiles)
            output_side(dy_TN, group, s, rank_pass, tables=tables, tiles=tiles, with_ds=False)
            input_side(
                x_TK, dx_TK, group, ds_PTC, rank_pass, tables=tables, row_keys_T=row_keys_T, tiles=tiles, add=True
            )
    return dx_TK
