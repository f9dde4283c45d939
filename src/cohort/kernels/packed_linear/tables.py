"""What a packed linear must know about its adapters, as plain host values.

Shapes:  R rank rows of all slots · K input width · N output width of one part
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from cohort.core.errors import SegmentError

__all__ = ["LoraPart", "SlotFactors", "SlotTable"]

# Views that a part keeps at most: trials come and go, each at rank rows of its own.
_MOST_VIEWS = 256


@dataclass(frozen=True, kw_only=True)
class SlotTable:
    """Where each slot's rank rows are in the bank, and what scales them. One entry per slot; a free slot has rank 0.

    Attributes:
        row_starts: First rank row of the slot.
        ranks: True rank r of the slot. Rows of a slot of rank 0 get the frozen product alone.
        scales: ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` with rsLoRA.
        dropouts: Dropout probability on the adapter's input, in [0, 1).

    Raises:
        SegmentError: the four are not equally long, a value is out of its range, or two slots share rank rows.
    """

    row_starts: tuple[int, ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    dropouts: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("row_starts", "ranks", "scales", "dropouts")}
        if len(set(lengths.values())) > 1:
            raise SegmentError(f"a slot table has one entry per slot in each of its fields, found {lengths}")
        entries = zip(self.row_starts, self.ranks, self.dropouts, strict=True)
        for slot, (start, rank, dropout) in enumerate(entries):
            if not isinstance(start, int) or not isinstance(rank, int) or start < 0 or rank < 0:
                raise SegmentError(
                    f"slot {slot} begins at rank row {start!r} and has rank {rank!r}; both must be integers of at "
                    "least 0 (rank 0: no adapter)"
                )
            if not 0.0 <= dropout < 1.0:
                raise SegmentError(f"slot {slot} has dropout {dropout!r}; it must be at least 0 and below 1")
        taken = sorted(
            (start, rank, slot)
            for slot, (start, rank) in enumerate(zip(self.row_starts, self.ranks, strict=True))
            if rank
        )
        for (start, rank, slot), (follows, _, other) in itertools.pairwise(taken):
            if follows < start + rank:
                raise SegmentError(
                    f"slots {slot} and {other} share rank rows: {start}:{start + rank} and from {follows} on; begin "
                    "each slot where the one before it ends, or later"
                )

    @property
    def num_slots(self) -> int:
        """Slots of the bank, free ones included."""
        return len(self.ranks)

    @cached_property
    def end_of_rank_rows(self) -> int:
        """The row after the last rank row of any slot: factors have at least that many rows."""
        ends = (start + rank for start, rank in zip(self.row_starts, self.ranks, strict=True) if rank)
        return max(ends, default=0)

    def rank_rows(self, slot: int) -> slice:
        return slice(self.row_starts[slot], self.row_starts[slot] + self.ranks[slot])


class SlotFactors(NamedTuple):
    """Views of one slot's factors and sinks, or of several slots' with a first axis for them, as products read them."""

    a_rK: Tensor
    a_Kr: Tensor
    b_rN: Tensor
    b_Nr: Tensor
    grad_a_rK: Tensor | None
    grad_b_rN: Tensor | None


@dataclass(frozen=True, kw_only=True)
class LoraPart:
    """The stacked factors of one named linear: all slots' rank rows one below the other.

    B is kept transposed (rank rows by output width) so that a slot's true rank is a plain row range of both factors.

    Attributes:
        a_RK: A of every slot.
        b_RN: B^T of every slot.
        grad_a_RK, grad_b_RN: Sinks that backward adds to, in sample order, instead of returning gradients; both or
            none.
        column_start: First column of the fused frozen product that this part owns.
        module_key: Key of the module for dropout, see :func:`cohort.kernels.dropout.module_key`.
        first_feature: Number of the first input among those that dropout counts: a shard of a linear drops what the
            whole linear would. The grouped kernels know 0 only.
    """

    a_RK: Tensor
    b_RN: Tensor
    grad_a_RK: Tensor | None = None
    grad_b_RN: Tensor | None = None
    column_start: int = 0
    module_key: int = 0
    first_feature: int = 0

    @cached_property
    def columns(self) -> slice:
        """Columns of the fused output that this part owns."""
        return slice(self.column_start, self.column_start + self.b_RN.shape[1])

    def of_slot(self, first: int, stop: int) -> SlotFactors:
        """Return views of rank rows ``first : stop``; every product of every pass asks for them, so they are kept."""
        found = self._views.get((first, stop))
        if found is None:
            a_rK, b_rN = self.a_RK[first:stop], self.b_RN[first:stop]
            grads = (None if sink is None else sink[first:stop] for sink in (self.grad_a_RK, self.grad_b_RN))
            found = self._keep((first, stop), SlotFactors(a_rK, a_rK.t(), b_rN, b_rN.t(), *grads))
        return found

    def of_slots(self, first: int, *, step: int, count: int, rank: int) -> SlotFactors:
        """Return views of ``count`` slots of ``rank`` rank rows each, ``step`` rows from one to the next.

        Each has a first axis for the slots; kept as those of :meth:`of_slot` are.
        """
        key = (first, step, count, rank)
        found = self._views.get(key)
        if found is None:

            def of_all(rows_RX: Tensor) -> Tensor:
                width, (stride, unit) = rows_RX.shape[1], rows_RX.stride()
                place = rows_RX.storage_offset() + first * stride
                return rows_RX.as_strided((count, rank, width), (step * stride, stride, unit), place)

            a_rK, b_rN = of_all(self.a_RK), of_all(self.b_RN)
            grads = (None if sink is None else of_all(sink) for sink in (self.grad_a_RK, self.grad_b_RN))
            found = self._keep(key, SlotFactors(a_rK, a_rK.transpose(1, 2), b_rN, b_rN.transpose(1, 2), *grads))
        return found

    def _keep(self, key: tuple[int, ...], views: SlotFactors) -> SlotFactors:
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        self._views[key] = views
        return views

    @cached_property
    def suits(self) -> set[tuple[Any, ...]]:
        """Inputs (width, dtype, device) that the part was found to fit; written by the checks."""
        return set()

    @cached_property
    def arranged(self) -> dict[tuple[Any, ...], Any]:
        """Terms of slots arranged for few rows; written by what arranges them."""
        return {}

    @cached_property
    def stacked(self) -> dict[str, Any]:
        """Those of several slots that were asked for last; written by what stacks them."""
        return {}

    @cached_property
    def _views(self) -> dict[tuple[int, ...], SlotFactors]:
        return {}
