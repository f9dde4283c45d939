"""The path for generation on CPUs: one frozen product over the stream, adapter products slot by slot.

Generation has many samples of one row each, for which a loop over samples is all overhead. Where the BLAS gives a row
the same bits at any height (:mod:`.term_heights`), a product takes a slot's rows, and the few rows of a slot that has
less than the least height in a window of that many. Elsewhere it takes a window that begins with the slot's own rows:
at least 32 rows and a multiple of 16, in which a row's bits are its own (see per_sample.py). Rows of others may stand
in a window; what the product gives for them is not used. A stream that is shorter than a window is filled up. Rows of
no sample may hold anything.

Shapes:  T rows of the stream · W rows of a window · K input width · N output width · r true rank
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.few_rows_product import MOST_FEW_ROWS
from cohort.kernels.packed_linear.arranged_terms import MOST_SLOTS, arranged_term, stamp_of
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.row_runs import add_row_product, row_product
from cohort.kernels.packed_linear.slot_stretches import is_power_of_two
from cohort.kernels.packed_linear.stacked_terms import add_stacked
from cohort.kernels.packed_linear.tables import LoraPart, SlotFactors, SlotTable
from cohort.kernels.packed_linear.term_heights import MOST_ROWS, term_least
from cohort.kernels.segments import SegmentTable

__all__ = ["per_slot_forward"]


def per_slot_forward(
    x_TK: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], slots: SlotTable, segments: SegmentTable
) -> Tensor:
    """Return y [T, N], without gradients and dropout."""
    y_TN = frozen.forward(x_TK)
    asks = x_TK.device.type == "cpu" and x_TK.dtype == torch.float32 and x_TK.is_contiguous()
    num_threads, left = torch.get_num_threads(), []
    num_used, num_rows, product_width = segments.num_used, segments.num_rows, y_TN.shape[1]
    slot_rows = _slot_rows(segments)
    stamp = stamp_of(parts) if asks and parts and len(slot_rows) <= MOST_SLOTS else None
    if stamp is not None and add_stacked(
        y_TN, x_TK, parts=parts, stamp=stamp, slots=slots, segments=segments, slot_rows=slot_rows
    ):
        return y_TN
    for slot, rows in slot_rows:
        rank, scale = slots.ranks[slot], slots.scales[slot]
        if rank == 0:
            continue
        if not asks or not is_power_of_two(scale):
            left += [(slot, index) for index in range(len(parts))]
            continue
        rank_rows = (slots.row_starts[slot], slots.row_starts[slot] + rank)
        if stamp is not None and rows.stop - rows.start <= MOST_FEW_ROWS:
            term = arranged_term(
                parts,
                stamp=stamp,
                rank_rows=rank_rows,
                scale=scale,
                product_width=product_width,
                num_threads=num_threads,
            )
            if term is not None and term.add_to(y_TN, x_TK, rows=rows, num_used=num_used):
                continue
        x_ZK = x_TK[rows]
        for index, part in enumerate(parts):
            y_part = y_TN[:, part.columns]
            shape = (x_TK.shape[1], y_part.shape[1], product_width, rank, part.a_RK.stride(0), num_threads)
            least = term_least(*shape)
            if least is None:
                left.append((slot, index))
                continue
            factors = part.of_slot(*rank_rows)
            if rows.stop == num_used and num_used - rows.start < least <= num_rows - rows.start:
                # nothing but filler behind them
                own = slice(rows.start, rows.start + least)
                y_part[own].addmm_(torch.mm(x_TK[own], factors.a_Kr), factors.b_rN, alpha=scale)
            else:
                _add_own(y_part, x_TK, x_ZK, rows=rows, factors=factors, scale=scale, least=least)
    if left:
        windows = {own[0]: own for own in _windows(x_TK, slots=slots, segments=segments)}
        for slot, index in left:
            _add_in_window(y_TN[:, parts[index].columns], windows[slot], part=parts[index], slots=slots)
    return y_TN


def _add_own(
    y_TN: Tensor, x_TK: Tensor, x_ZK: Tensor, *, rows: slice, factors: SlotFactors, scale: float, least: int
) -> None:
    """Add a part's term of one slot to its rows, by products of any height from ``least`` on."""
    count = rows.stop - rows.start
    if least <= count <= MOST_ROWS:
        y_TN[rows].addmm_(torch.mm(x_ZK, factors.a_Kr), factors.b_rN, alpha=scale)
    elif count > MOST_ROWS:
        s_Zr = row_product(x_ZK, factors.a_Kr, least=least)
        add_row_product(y_TN[rows], s_Zr, factors.b_rN, alpha=scale, least=least)
    else:
        # the same products in a window of its rows and others', of which its own are kept
        start = max(0, min(rows.start, x_TK.shape[0] - least))
        s_Wr = torch.mm(_filled(x_TK[start : start + least], least), factors.a_Kr)
        y_WN = _with_its_strides(y_TN[start : start + least], least).addmm_(s_Wr, factors.b_rN, alpha=scale)
        y_TN[rows] = y_WN[rows.start - start : rows.stop - start]


def _filled(x_TK: Tensor, height: int) -> Tensor:
    missing = height - x_TK.shape[0]
    return F.pad(x_TK, (0, 0, 0, missing)) if missing > 0 else x_TK


def _with_its_strides(y_TN: Tensor, height: int) -> Tensor:
    """Return a copy of ``height`` rows with the strides of its original, from which a product's bits may follow."""
    (count, width), stride = y_TN.shape, y_TN.stride(0)
    y_WN = y_TN.new_zeros(height * stride).as_strided((height, width), (stride, 1))
    y_WN[:count] = y_TN
    return y_WN


def _slot_rows(segments: SegmentTable) -> list[tuple[int, slice]]:
    """Return the slots that have rows, and those; every linear of a pass asks."""
    found: list[tuple[int, slice]] | None = segments.derived.get("slot rows")
    if found is None:
        rows = ((slot, segments.rows(slot)) for slot in range(segments.num_slots))
        found = segments.derived["slot rows"] = [(slot, own) for slot, own in rows if own.stop > own.start]
    return found


def _add_in_window(y_TN: Tensor, window: tuple[int, slice, Tensor, slice], *, part: LoraPart, slots: SlotTable) -> None:
    slot, rows, x_WK, own = window
    rank_rows = slots.rank_rows(slot)
    s_Wr, scale = x_WK @ part.a_RK[rank_rows].T, slots.scales[slot]
    if not is_power_of_two(scale):
        s_Wr *= scale
        scale = 1.0
    # a power of two rounds nothing, before the second product or after it: the usual scale of 2 costs no pass
    y_TN[rows].add_((s_Wr @ part.b_RN[rank_rows])[own], alpha=scale)


def _windows(x_TK: Tensor, *, slots: SlotTable, segments: SegmentTable) -> list[tuple[int, slice, Tensor, slice]]:
    """Return each slot with rows, those rows, a window [W, K] that holds them, and their place in it."""
    ends = (window.stop for _, _, window, _ in segments.slot_windows)
    # filled up first: rows that are filled up lie one behind the other again
    x_TK = _aligned(_filled(x_TK, max(ends, default=0)))
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
