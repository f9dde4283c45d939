"""Rows of a stream whose hidden states are read: the last layer computes no others behind its attention.

A loss over completions reads the rows that predict them. Of the rows of a prompt the last layer needs keys and values
alone: their outputs enter no other layer, and their gradients are zero. So its last three linears, two thirds or more
of its arithmetic, take the other rows only.

On a CPU a sample keeps a run of its rows, as products of a few heights are the faster ones there. The grouped kernels
of a GPU take the very rows that are read.

Shapes:  T rows of the stream · M rows that are needed, filler included · X width of a row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.adapters.linear import LoraContext
from cohort.kernels.packed_linear import LaunchTables, PaddedRows
from cohort.kernels.packed_linear.launch.tables import PRODUCT_ROWS
from cohort.kernels.row_stable_product import LEAST_ROWS, ROW_MULTIPLE
from cohort.kernels.segments import SampleSpan, SegmentTable

__all__ = ["NeededRows", "needed_segments"]

# A sample's rows are rounded up to ROW_MULTIPLE where it has as many: answers of about one length become as many rows
# each, which are multiplied together. It keeps all rows where less than this share would be left out: moving the rows
# costs what a quarter of them takes.
LEAST_SHARE = 1 / 4


@dataclass(frozen=True, kw_only=True, eq=False)
class NeededRows:
    """Which rows of a stream of T rows are needed.

    How many rows a sample keeps follows from the sample alone, so that the bits of its gradients do.

    Attributes:
        rows_M: int64 numbers of the rows, sample by sample, then filler: rows of the stream that nothing reads.
        num_used: Rows before the filler; in a recorded pass all, since any may be used later.
        segments: Of those rows.
        tables: Of those rows, for the grouped kernels; None on a CPU.
    """

    rows_M: Tensor
    num_used: int
    segments: SegmentTable
    tables: LaunchTables | None = None

    @classmethod
    def of(cls, segments: SegmentTable, reads: Sequence[NDArray[np.int64]]) -> NeededRows | None:
        """Return what of a stream on a CPU is needed; None where each sample keeps all of its rows.

        A stream of 32 rows stays as long, but its samples leave out the same rows: what a gradient sums must not depend
        on the stream.

        Args:
            segments: Of the stream.
            reads: The rows of each sample that are read, ascending.
        """
        spans = [_kept(span, rows) for span, rows in zip(segments.samples, reads, strict=True)]
        num_used = sum(span.stop - span.start for span in spans)
        if num_used == sum(span.stop - span.start for span in segments.samples):
            return None
        num_rows = min(max(-(-num_used // ROW_MULTIPLE) * ROW_MULTIPLE, LEAST_ROWS), segments.num_rows)
        is_free_T = np.ones(segments.num_rows, dtype=np.bool_)
        for span in spans:
            is_free_T[span.start : span.stop] = False
        filler = np.flatnonzero(is_free_T)[: num_rows - num_used]
        rows = np.concatenate([*(np.arange(span.start, span.stop) for span in spans), filler])
        kept = needed_segments(segments, [span.stop - span.start for span in spans], num_rows=num_rows)
        return cls(rows_M=torch.from_numpy(rows), num_used=num_used, segments=kept)

    @classmethod
    def launched(cls, lora: LoraContext, tables: LaunchTables, *, rows_M: Tensor, counts: Sequence[int]) -> NeededRows:
        """Return the rows that are read and no others, for a pass whose linears launch the grouped kernels.

        Args:
            lora, tables: What the linears read of the whole stream, and its tables.
            rows_M: int64 numbers of the rows that are read, on the device; the stream's last one is never read.
            counts: How many of them each sample has.
        """
        num_used = sum(counts)
        num_rows = max(-(-num_used // ROW_MULTIPLE), 1) * ROW_MULTIPLE
        if tables.exact and num_rows % PRODUCT_ROWS == 0:
            # exact products would ask the BLAS about one more size, which makes the device wait
            num_rows += ROW_MULTIPLE
        kept = needed_segments(lora.segments, counts, num_rows=num_rows)
        own = LaunchTables(kept, lora.slots, device=tables.device, exact=tables.exact, fresh_slots=tables.fresh_slots)
        filled_M = F.pad(rows_M, (0, num_rows - num_used), value=lora.segments.num_rows - 1)
        return cls(rows_M=filled_M, num_used=num_used, segments=kept, tables=own)

    def narrowed(self, lora: LoraContext) -> LoraContext:
        """Return what the linears need for a pass over these rows alone."""
        keys = None if lora.row_keys_T is None else self.pick(lora.row_keys_T)
        return replace(lora, segments=self.segments, row_keys_T=keys, tables=self.tables)

    def pick(self, x_TX: Tensor) -> Tensor:
        """Return the rows [M, X]; outside autograd."""
        return x_TX.index_select(0, self.rows_M)

    def place(self, x_MX: Tensor, *, num_rows: int) -> Tensor:
        """Return a stream of ``num_rows`` with these rows in it, and zeros elsewhere; outside autograd."""
        x_TX = x_MX.new_zeros(num_rows, *x_MX.shape[1:])
        return x_TX.index_copy_(0, self.rows_M[: self.num_used], x_MX[: self.num_used])

    def picked(self, x_TX: Tensor, *, room: PaddedRows | None = None) -> Tensor:
        """As :meth:`pick`, differentiable; into ``room`` where the next linear asks for it."""
        rows: Tensor = _Pick.apply(x_TX, self, room)
        return rows

    def placed(self, x_MX: Tensor, *, num_rows: int) -> Tensor:
        """As :meth:`place`, differentiable."""
        stream: Tensor = _Place.apply(x_MX, self, num_rows)
        return stream


def needed_segments(segments: SegmentTable, counts: Sequence[int], *, num_rows: int) -> SegmentTable:
    """Return the table of ``num_rows`` rows of which each sample of ``segments`` has as many as ``counts`` says."""
    slots = [span.slot for span in segments.samples]
    return SegmentTable.from_samples(counts, slots=slots, num_slots=segments.num_slots, num_rows=num_rows)


def _kept(span: SampleSpan, rows: NDArray[np.int64]) -> SampleSpan:
    """Return the rows of a sample that are kept: from the first to the last that is read, rounded up."""
    length = span.stop - span.start
    first, end = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (span.stop, span.stop)
    count = max(-(-(end - first) // ROW_MULTIPLE), 1) * ROW_MULTIPLE
    if length - count < LEAST_SHARE * length:
        return span
    start = max(span.start, end - count)
    return SampleSpan(start, start + count, span.slot)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TX: Tensor, needed: NeededRows, room: PaddedRows | None) -> Tensor:
        ctx.needed, ctx.num_rows = needed, x_TX.shape[0]
        if room is None:
            return needed.pick(x_TX)
        return room.rows_TK.copy_(needed.pick(x_TX))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MX: Tensor) -> tuple[Tensor, None, None]:
        return ctx.needed.place(dy_MX, num_rows=ctx.num_rows), None, None


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MX: Tensor, needed: NeededRows, num_rows: int) -> Tensor:
        ctx.needed = needed
        return needed.place(x_MX, num_rows=num_rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TX: Tensor) -> tuple[Tensor, None, None]:
        return ctx.needed.pick(dy_TX), None, None
