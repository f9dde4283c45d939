"""LoRA products of neighbouring slots of one rank on a CPU, with as little around each product as can be.

What is computed is what :mod:`.per_sample` computes for one slot whose rows share products: the same products of the
same rows in the same order, so the same bits. But rows are cut into runs and samples once for all of a stretch, S of
all its slots is one buffer, and views of factors are kept from pass to pass. Around a product of 64 rows that takes
5 us, slices and calls took 15.

Shapes:  T rows of the stream · S rows of a stretch · Z rows of one run · L rows of one sample · K input width
         N output width of one part · r true rank
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.packed_linear.row_runs import even_heights
from cohort.kernels.packed_linear.tables import LoraPart, SlotFactors, SlotTable
from cohort.kernels.segments import SegmentTable, SlotSamples

__all__ = [
    "MOST_ROWS_ADDED",
    "Stretch",
    "add_gradient",
    "is_power_of_two",
    "stretch_backward",
    "stretch_forward",
    "stretches",
]

# Up to here a sum over a sample's rows has the same bits whether the BLAS adds it to the sink or we do: MKL's cuts of
# longer ones begin above 192 rows.
MOST_ROWS_ADDED = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretch:
    """Slots that stand one after the other in the stream and have one rank, a scale that rounds nothing, no dropout.

    Attributes:
        slots: The samples of each.
        runs: Rows of each run; none is of two slots.
        slots_of_runs: The place in ``slots`` of each run's slot.
        lengths: Rows of each sample.
        slots_of_samples: As ``slots_of_runs``.
    """

    slots: tuple[SlotSamples, ...]
    rank: int
    rows: slice
    runs: list[int]
    slots_of_runs: list[int]
    lengths: list[int]
    slots_of_samples: list[int]
    rank_rows: tuple[tuple[int, int], ...]
    scales: tuple[float, ...]
    least_run: int

    def factors(self, part: LoraPart) -> list[SlotFactors]:
        return [part.of_slot(*rows) for rows in self.rank_rows]

    def by_run(self, rows_TX: Tensor) -> Sequence[Tensor]:
        """Return the rows of each run."""
        own = rows_TX[self.rows]
        return (own,) if len(self.runs) == 1 else own.split_with_sizes(self.runs)

    def by_sample(self, rows_TX: Tensor) -> Sequence[Tensor]:
        """Return the rows of each sample."""
        own = rows_TX[self.rows]
        return (own,) if len(self.lengths) == 1 else own.split_with_sizes(self.lengths)


def stretches(segments: SegmentTable, slots: SlotTable, *, drops: bool) -> list[Stretch | SlotSamples]:
    """Return the slots that have rows, in the stream's order: in stretches where they can be, one by one elsewhere.

    ``drops``: whether slots with dropout drop something.
    """
    key = ("stretches", slots, drops)
    found: list[Stretch | SlotSamples] | None = segments.derived.get(key)
    if found is None:
        found = segments.derived[key] = _stretches(segments, slots, drops=drops)
    return found


def _stretches(segments: SegmentTable, slots: SlotTable, *, drops: bool) -> list[Stretch | SlotSamples]:
    def rank_of(own: SlotSamples) -> int:
        plain = is_power_of_two(slots.scales[own.slot]) and not (drops and slots.dropouts[own.slot])
        return slots.ranks[own.slot] if plain and own.rows.stop > own.rows.start else 0

    found: list[Stretch | SlotSamples] = []
    for rank, group in itertools.groupby(segments.slot_samples, key=rank_of):
        own = tuple(group)
        if rank == 0:
            found += own
            continue
        heights = [even_heights(each.rows.stop - each.rows.start) for each in own]
        rank_rows = (slots.rank_rows(each.slot) for each in own)
        found.append(
            Stretch(
                slots=own,
                rank=rank,
                rows=slice(own[0].rows.start, own[-1].rows.stop),
                runs=[height for of_slot in heights for height in of_slot],
                slots_of_runs=[place for place, of_slot in enumerate(heights) for _ in of_slot],
                lengths=[length for each in own for length in each.lengths],
                slots_of_samples=[place for place, each in enumerate(own) for _ in each.lengths],
                rank_rows=tuple((rows.start, rows.stop) for rows in rank_rows),
                scales=tuple(slots.scales[each.slot] for each in own),
                least_run=min(height for of_slot in heights for height in of_slot),
            )
        )
    return found


def stretch_forward(y_TN: Tensor, *, x_runs: Sequence[Tensor], part: LoraPart, stretch: Stretch) -> Tensor:
    """Add the terms of one part to ``y`` and return S [S, r]."""
    factors, scales = stretch.factors(part), stretch.scales
    y_SN, mm = y_TN[stretch.rows, part.columns], torch.mm
    if len(stretch.runs) == 1:
        # one trial alone: nothing to cut
        s_Sr = mm(x_runs[0], factors[0].a_Kr)
        y_SN.addmm_(s_Sr, factors[0].b_rN, alpha=scales[0])
        return s_Sr
    s_Sr = y_TN.new_empty(stretch.rows.stop - stretch.rows.start, stretch.rank)
    y_runs, s_runs = y_SN.split_with_sizes(stretch.runs), s_Sr.split_with_sizes(stretch.runs)
    for x_ZK, s_Zr, y_ZN, slot in zip(x_runs, s_runs, y_runs, stretch.slots_of_runs, strict=True):
        own = factors[slot]
        mm(x_ZK, own.a_Kr, out=s_Zr)
        y_ZN.addmm_(s_Zr, own.b_rN, alpha=scales[slot])
    return s_Sr


def stretch_backward(
    dy_TN: Tensor,
    *,
    s_Sr: Tensor,
    x_samples: Sequence[Tensor],
    dx_runs: Sequence[Tensor] | None,
    part: LoraPart,
    stretch: Stretch,
) -> None:
    """Add one part's term to dx, if there is one, and every sample's dA and dB to the sinks, in sample order."""
    factors, scales = stretch.factors(part), stretch.scales
    dy_SN, mm = dy_TN[stretch.rows, part.columns], torch.mm
    ds_runs: Sequence[Tensor]
    if len(stretch.runs) == 1:
        ds_Sr = mm(dy_SN, factors[0].b_Nr)
        ds_runs = (ds_Sr,)
    else:
        ds_Sr = torch.empty_like(s_Sr)
        ds_runs = ds_Sr.split_with_sizes(stretch.runs)
        for dy_ZN, ds_Zr, slot in zip(
            dy_SN.split_with_sizes(stretch.runs), ds_runs, stretch.slots_of_runs, strict=True
        ):
            mm(dy_ZN, factors[slot].b_Nr, out=ds_Zr)
    s_samples, ds_samples = (rows_Sr.t().split_with_sizes(stretch.lengths, 1) for rows_Sr in (s_Sr, ds_Sr))
    dy_samples = dy_SN.split_with_sizes(stretch.lengths)
    same_dtype = part.grad_a_RK is not None and part.grad_a_RK.dtype == s_Sr.dtype
    for s_rL, ds_rL, dy_LN, x_LK, length, slot in zip(
        s_samples, ds_samples, dy_samples, x_samples, stretch.lengths, stretch.slots_of_samples, strict=True
    ):
        own, alpha = factors[slot], scales[slot]
        assert own.grad_a_rK is not None, "backward needs sinks"
        assert own.grad_b_rN is not None, "backward needs sinks"
        # as add_gradient does, whose calls would be felt
        if length <= MOST_ROWS_ADDED and same_dtype:
            own.grad_b_rN.addmm_(s_rL, dy_LN, alpha=alpha)
            own.grad_a_rK.addmm_(ds_rL, x_LK, alpha=alpha)
        else:
            own.grad_b_rN.add_(s_rL @ dy_LN, alpha=alpha)
            own.grad_a_rK.add_(ds_rL @ x_LK, alpha=alpha)
    if dx_runs is None:
        return
    for dx_ZK, ds_Zr, slot in zip(dx_runs, ds_runs, stretch.slots_of_runs, strict=True):
        dx_ZK.addmm_(ds_Zr, factors[slot].a_rK, alpha=scales[slot])


def add_gradient(sink_rW: Tensor, left_rL: Tensor, right_LW: Tensor, *, alpha: float) -> None:
    """Add ``alpha left right`` to the sink, a sum over one sample's rows."""
    # by its length alone, which is the sample's own
    if left_rL.shape[1] <= MOST_ROWS_ADDED and sink_rW.dtype == left_rL.dtype:
        sink_rW.addmm_(left_rL, right_LW, alpha=alpha)
    else:
        sink_rW.add_(left_rL @ right_LW, alpha=alpha)


def is_power_of_two(scale: float) -> bool:
    """Return whether ``scale`` rounds nothing, wherever in a chain of products it multiplies."""
    return math.frexp(scale)[0] == 0.5
