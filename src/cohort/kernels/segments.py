"""Which rows of a packed stream belong to which adapter slot and to which sample.

Rows are sorted by slot: slot z owns rows ``offsets[z]:offsets[z + 1]``; rows from ``offsets[-1]`` on belong to no
adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from cohort.core.errors import SegmentError

__all__ = ["SampleSpan", "SegmentTable", "SlotSamples"]

_WINDOW_MULTIPLE = 16
_LEAST_WINDOW = 32


@dataclass(frozen=True)
class SampleSpan:
    """Rows ``start:stop`` of one sample of slot ``slot`` (-1: no adapter)."""

    start: int
    stop: int
    slot: int


@dataclass(frozen=True)
class SlotSamples:
    """The samples of one slot, which stand one after the other.

    Attributes:
        places: Their numbers among all samples of the stream.
        lengths: Rows of each.
    """

    slot: int
    rows: slice
    places: slice
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SegmentTable:
    """The adapter segments of one packed stream. Immutable, on the host: no device read ever decides a launch.

    Attributes:
        num_rows: Rows of the stream, filler included.
        offsets: ``num_slots + 1`` row offsets, non-decreasing, starting at 0.
        samples: Spans in row order, covering exactly rows ``0:offsets[-1]``, and further spans with slot -1 after
            them for samples that run through the frozen model alone.
        multiplies_slots: Whether one product may take all rows of a slot, which a CPU otherwise multiplies sample by
            sample: many samples of one or a few rows, as generation has them, then cost a fraction. Only without
            gradients.
    """

    num_rows: int
    offsets: tuple[int, ...]
    samples: tuple[SampleSpan, ...]
    multiplies_slots: bool = False

    def __post_init__(self) -> None:
        if not self.offsets or self.offsets[0] != 0 or any(b < a for a, b in itertools.pairwise(self.offsets)):
            raise SegmentError(f"offsets must start at 0 and never decrease, got {self.offsets}")
        if self.offsets[-1] > self.num_rows:
            raise SegmentError(f"segments cover {self.offsets[-1]} rows but the stream has {self.num_rows}")
        row = 0
        for span in self.samples:
            if span.start != row or span.stop < span.start:
                raise SegmentError(f"sample spans must follow each other without gaps: {span} starts not at row {row}")
            row = span.stop
            if span.slot >= 0:
                if span.slot >= self.num_slots:
                    raise SegmentError(f"{span} names slot {span.slot} but there are {self.num_slots} slots")
                first, last = self.offsets[span.slot], self.offsets[span.slot + 1]
                if span.start < first or span.stop > last:
                    raise SegmentError(f"{span} lies outside its slot's rows {first}:{last}")
            elif span.start < self.offsets[-1]:
                raise SegmentError(f"{span} has no adapter but lies within adapter rows 0:{self.offsets[-1]}")
        if row < self.offsets[-1] or row > self.num_rows:
            raise SegmentError(f"sample spans end at row {row}, adapter rows at {self.offsets[-1]} of {self.num_rows}")

    @property
    def num_slots(self) -> int:
        """Slots the table knows, empty ones included."""
        return len(self.offsets) - 1

    @property
    def num_adapter_rows(self) -> int:
        """Rows that belong to some adapter."""
        return self.offsets[-1]

    def rows(self, slot: int) -> slice:
        return slice(self.offsets[slot], self.offsets[slot + 1])

    @cached_property
    def slot_samples(self) -> tuple[SlotSamples, ...]:
        """The samples of each slot that has some, in order. Every linear of a pass asks for them."""
        found, first = [], 0
        for slot, spans in itertools.groupby(self.samples, key=lambda span: span.slot):
            own = list(spans)
            rows, places = slice(own[0].start, own[-1].stop), slice(first, first + len(own))
            if slot >= 0:
                found.append(SlotSamples(slot, rows, places, tuple(span.stop - span.start for span in own)))
            first += len(own)
        return tuple(found)

    @cached_property
    def num_used(self) -> int:
        """Rows that belong to some sample; those from there on are filler."""
        return self.samples[-1].stop if self.samples else self.offsets[-1]

    def split(self, x_TX: Tensor) -> Sequence[Tensor]:
        """Return views of the rows of each sample, and behind them those of no sample."""
        return x_TX.split_with_sizes(self._sample_sizes)

    @cached_property
    def _sample_sizes(self) -> list[int]:
        return [*(span.stop - span.start for span in self.samples), self.num_rows - self.num_used]

    @cached_property
    def slot_windows(self) -> tuple[tuple[int, slice, slice, slice], ...]:
        """Each slot with rows, those rows, a window of rows that holds them, and their place in it.

        A window has a multiple of 16 rows, at least 32: in such a product a row's bits are its own on a CPU. Every
        linear of a pass asks for them.
        """
        windows = []
        for slot in range(self.num_slots):
            rows = self.rows(slot)
            if (count := rows.stop - rows.start) == 0:
                continue
            size = max(-(-count // _WINDOW_MULTIPLE) * _WINDOW_MULTIPLE, _LEAST_WINDOW)
            # at the stream's end the window begins earlier; one over a shorter stream goes on past its end
            start = max(0, min(rows.start, self.num_rows - size))
            own = slice(rows.start - start, rows.stop - start)
            windows.append((slot, rows, slice(start, start + size), own))
        return tuple(windows)

    @cached_property
    def derived(self) -> dict[object, Any]:
        """What a path computes of this table once, for all linears of a pass, under a key of its own."""
        return {}

    def by_slot(self) -> SegmentTable:
        """Return the same segments with all rows of a slot as one span, for paths that work slot by slot."""
        spans = tuple(SampleSpan(self.offsets[z], self.offsets[z + 1], z) for z in range(self.num_slots))
        return SegmentTable(num_rows=self.num_rows, offsets=self.offsets, samples=spans)

    @classmethod
    def from_samples(
        cls,
        lengths: Sequence[int],
        *,
        slots: Sequence[int],
        num_slots: int,
        num_rows: int,
        multiplies_slots: bool = False,
    ) -> SegmentTable:
        """Build the table of samples of ``lengths`` rows that stand one after the other.

        Args:
            slots: Slot of each sample, non-decreasing, with -1 (no adapter) only at the end.
            num_rows: Rows of the stream, at least ``sum(lengths)``.

        Raises:
            SegmentError: the slots are not sorted or the rows do not fit.
        """
        if len(lengths) != len(slots):
            raise SegmentError(f"{len(lengths)} lengths but {len(slots)} slots; give the slot of each sample")
        if min(lengths, default=0) < 0:
            raise SegmentError(f"a sample cannot have {min(lengths)} rows: lengths must be at least 0")
        if max(slots, default=-1) >= num_slots:
            raise SegmentError(f"a sample is in slot {max(slots)} but there are slots 0 to {num_slots - 1}")
        keys = [num_slots if slot < 0 else slot for slot in slots]
        if keys != sorted(keys):
            raise SegmentError(f"samples must be sorted by slot with -1 last, got {list(slots)}")
        counts = [0] * num_slots
        spans = []
        row = 0
        for length, slot in zip(lengths, slots, strict=True):
            spans.append(SampleSpan(row, row + length, max(slot, -1)))
            row += length
            if slot >= 0:
                counts[slot] += length
        offsets = [0]
        for count in counts:
            offsets.append(offsets[-1] + count)
        return cls(num_rows=num_rows, offsets=tuple(offsets), samples=tuple(spans), multiplies_slots=multiplies_slots)
