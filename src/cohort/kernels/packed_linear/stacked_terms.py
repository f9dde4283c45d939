"""LoRA terms of several slots with few rows each in two batched products: [8, 4, 192] x [8, 192, 48] and back.

Slots of one rank have arranged factors of one shape (:mod:`.arranged_terms`), which stand stacked once a second pass
asks for the same ones: eight slots of four rows take 50 us in place of 160. A slot with fewer rows than the others is
filled up with one of its own. Whether a batched product gives a row the bits of a product of its slot is asked for the
shape, and where it does not, slots are multiplied one by one.

Shapes:  T rows of the stream · Z slots · H rows of each slot as they are multiplied · K input width
         N output width of all siblings · S ranks of all siblings side by side
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from cohort.kernels.packed_linear.arranged_terms import Stamp, arranged_term
from cohort.kernels.packed_linear.slot_stretches import is_power_of_two
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["add_stacked"]

# rows that are multiplied, over those that are wanted
MOST_FILLED = 4


class _Slots(NamedTuple):
    """The slots of a pass that can be multiplied together.

    Attributes:
        rank_rows, scales: Of each slot.
        first: The first row of all.
        counts: Rows of each slot.
    """

    rank_rows: tuple[tuple[int, int], ...]
    scales: tuple[float, ...]
    first: int
    counts: tuple[int, ...]


class _Stack(NamedTuple):
    """Factors of some slots. ``key`` says of which, and for which product; None until they are asked for again.

    Attributes:
        parts: Kept alive, so that no others have the ids in ``stamp``.
    """

    key: tuple[object, ...]
    parts: tuple[LoraPart, ...]
    stamp: Stamp
    factors: tuple[Tensor, Tensor] | None
    heights: tuple[int | None, ...]


class _Places(NamedTuple):
    """Which rows of the stream stand in a batch [Z * H], and which of the batch go where."""

    taken: Tensor
    own: Tensor
    rows: Tensor


def add_stacked(
    y_TN: Tensor,
    x_TK: Tensor,
    *,
    parts: Sequence[LoraPart],
    stamp: Stamp,
    slots: SlotTable,
    segments: SegmentTable,
    slot_rows: Sequence[tuple[int, slice]],
) -> bool:
    """Add the terms of all slots to their rows of y; return False where they are to be added one by one.

    Args:
        stamp: That of ``parts``, by which they are found to be as they were.
        slot_rows: The slots that have rows, and those.
    """
    together = _together(segments, slots, slot_rows)
    if together is None:
        return False
    stack = _stack(parts, stamp, together, product_width=y_TN.shape[1])
    most = max(together.counts)
    if stack is None or stack.factors is None or most >= len(stack.heights):
        return False
    height, num_slots, num_rows = stack.heights[most], len(together.counts), sum(together.counts)
    if height is None or height * num_slots > MOST_FILLED * num_rows:
        return False
    a_ZKS, b_ZSN = stack.factors
    (_, inner, total), width = a_ZKS.shape, b_ZSN.shape[2]
    if not _agrees(num_slots, height, inner, total, width, torch.get_num_threads()):
        return False
    if height * num_slots == num_rows:
        rows = slice(together.first, together.first + num_rows)
        s_ZHS = torch.bmm(x_TK[rows].view(num_slots, height, inner), a_ZKS)
        y_TN[rows].view(num_slots, height, width).baddbmm_(s_ZHS, b_ZSN)
        return True
    places = _places(segments, together, height)
    s_ZHS = torch.bmm(x_TK.index_select(0, places.taken).view(num_slots, height, inner), a_ZKS)
    y_ZHN = y_TN.index_select(0, places.taken).view(num_slots, height, width).baddbmm_(s_ZHS, b_ZSN)
    y_TN.index_copy_(0, places.rows, y_ZHN.view(-1, width).index_select(0, places.own))
    return True


def _together(segments: SegmentTable, slots: SlotTable, slot_rows: Sequence[tuple[int, slice]]) -> _Slots | None:
    """Return the slots with rows where they have one rank and scales that round nothing; every linear asks."""
    kept: tuple[SlotTable, _Slots | None] | None = segments.derived.get("slots together")
    if kept is not None and kept[0] is slots:
        return kept[1]
    found = None
    ranks = {slots.ranks[slot] for slot, _ in slot_rows}
    scales = tuple(slots.scales[slot] for slot, _ in slot_rows)
    if len(slot_rows) > 1 and len(ranks) == 1 and 0 not in ranks and all(map(is_power_of_two, scales)):
        rank_rows = tuple((slots.row_starts[slot], slots.row_starts[slot] + slots.ranks[slot]) for slot, _ in slot_rows)
        counts = tuple(rows.stop - rows.start for _, rows in slot_rows)
        found = _Slots(rank_rows, scales, slot_rows[0][1].start, counts)
    segments.derived["slots together"] = slots, found
    return found


def _stack(parts: Sequence[LoraPart], stamp: Stamp, together: _Slots, *, product_width: int) -> _Stack | None:
    threads = torch.get_num_threads()
    key = (together.rank_rows, together.scales, product_width, threads)
    kept: _Stack | None = parts[0].stacked.get("last")
    if kept is None or kept.key != key or kept.stamp != stamp:
        # passes whose slots change each time would copy all factors each time
        parts[0].stacked["last"] = _Stack(key, tuple(parts), stamp, None, ())
        return None
    if kept.factors is not None or kept.heights:
        return kept
    terms = [
        arranged_term(parts, stamp=stamp, rank_rows=own, scale=scale, product_width=product_width, num_threads=threads)
        for own, scale in zip(together.rank_rows, together.scales, strict=True)
    ]
    found = [term for term in terms if term is not None]
    if len(found) < len(terms):
        # never asked again
        kept = _Stack(key, tuple(parts), stamp, None, (None,))
    else:
        factors = torch.stack([term.a_KS for term in found]), torch.stack([term.b_SN for term in found])
        kept = _Stack(key, tuple(parts), stamp, factors, found[0].heights)
    parts[0].stacked["last"] = kept
    return kept


def _places(segments: SegmentTable, together: _Slots, height: int) -> _Places:
    key = ("stacked places", together, height)
    found: _Places | None = segments.derived.get(key)
    if found is None:
        taken, own, start = [], [], together.first
        for slot, count in enumerate(together.counts):
            taken += [start + min(place, count - 1) for place in range(height)]
            own += [slot * height + place for place in range(count)]
            start += count
        rows = torch.arange(together.first, start)
        found = segments.derived[key] = _Places(torch.tensor(taken), torch.tensor(own), rows)
    return found


@functools.cache
def _agrees(num_slots: int, height: int, inner: int, total: int, width: int, num_threads: int) -> bool:
    """Return whether batched products give the bits of the products of each slot."""
    del num_threads  # torch's own is in force
    generator = torch.Generator().manual_seed(0)
    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        x_ZHK, a_ZKS, b_ZSN, y_ZHN = (
            torch.randn(num_slots, *shape, generator=generator)
            for shape in ((height, inner), (inner, total), (total, width), (height, width))
        )
        found_ZHN = y_ZHN.clone().baddbmm_(torch.bmm(x_ZHK, a_ZKS), b_ZSN)
        alone = (y.addmm_(torch.mm(x, a), b) for y, x, a, b in zip(y_ZHN.clone(), x_ZHK, a_ZKS, b_ZSN, strict=True))
        return all(torch.equal(found, own) for found, own in zip(found_ZHN, alone, strict=True))
