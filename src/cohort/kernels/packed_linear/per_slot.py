"""The path for generation on CPUs: one frozen product over the stream, adapter products slot by slot.

Generation has many samples of one row each, for which a loop over samples is all overhead. A product takes a window of
rows that begins with the slot's own: at least 32 rows and a multiple of 16, in which a row's bits are its own (see
per_sample.py). Rows of others may stand in the window; what the product gives for them is not used.

Shapes:  T rows of the stream · W rows of a window · K input width · N output width · r true rank
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.slot_stretches import is_power_of_two
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["per_slot_forward"]


def per_slot_forward(
    x_TK: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], slots: SlotTable, segments: SegmentTable
) -> Tensor:
    """Return y [T, N], without gradients and dropout."""
    y_TN = frozen.forward(x_TK)
    windows = _windows(x_TK, slots=slots, segments=segments)
    for part in parts:
        y_part = y_TN[:, part.columns]
        for slot, rows, x_WK, own in windows:
            rank_rows = slots.rank_rows(slot)
            s_Wr, scale = x_WK @ part.a_RK[rank_rows].T, slots.scales[slot]
            if not is_power_of_two(scale):
                s_Wr *= scale
                scale = 1.0
            # a power of two rounds nothing, before the second product or after it: the usual scale of 2 costs no pass
            y_part[rows].add_((s_Wr @ part.b_RN[rank_rows])[own], alpha=scale)
    return y_TN


def _windows(x_TK: Tensor, *, slots: SlotTable, segments: SegmentTable) -> list[tuple[int, slice, Tensor, slice]]:
    """Return each slot with rows, those rows, a window [W, K] that holds them, and their place in it."""
    x_TK = _aligned(x_TK)
    return [
        (slot, rows, x_TK[window], own) for slot, rows, window, own in segments.slot_windows if slots.ranks[slot] != 0
    ]


def _aligned(x_TK: Tensor) -> Tensor:
    """Return ``x`` with rows that begin at multiples of 16 bytes: otherwise a row's bits follow from its place."""
    width, unit = x_TK.shape[1], 16 // x_TK.element_size()
    if width % unit == 0:
        return x_TK
    wide = x_TK.new_zeros(len(x_TK), -(-width // unit) * unit)
    wide[:, :width] = x_TK
    return wide[:, :width]
