"""Where the rows of a packed stream are in padded buckets of sequences of about one length, and back.

Shapes:  T rows of the stream · P rows of the padded buckets · X heads · E head width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.kernels.staging import stage_together

__all__ = ["Bucket", "BucketLayout"]

# Sequences are padded to their own length's next multiple: 16 rows keep every bucket aligned to cache lines on the CPU.
# On a GPU 256 keeps launches few: forward + backward of 8,704 rows in sequences of 512 to 1,024 (32 query, 8 key-value
# heads of 128, bf16, H200) takes 1.9 ms, with 128 2.4 ms, with 16 3.8 ms.
CPU_LENGTH_MULTIPLE = 16
GPU_LENGTH_MULTIPLE = 256


@dataclass(frozen=True)
class Bucket:
    """``count`` sequences padded to ``length`` rows each, at padded rows ``start : start + count * length``."""

    start: int
    count: int
    length: int


@dataclass(frozen=True)
class BucketLayout:
    """Where each stream row is in the padded buckets, and back.

    Padded rows repeat their own sequence's first row: no other sequence's values are read, and causality keeps the
    copies, which come last, out of every real row.
    """

    buckets: tuple[Bucket, ...]
    rows_P: Tensor
    """Stream row of each padded row."""
    padding: Tensor
    """Padded rows that are copies."""
    places_T: Tensor
    """Padded row of each stream row (0 for rows of no sequence)."""
    num_used: int
    is_stream: bool
    """Whether padded rows are the stream's, one for one: nothing has to be moved."""

    @classmethod
    def build(cls, offsets: tuple[int, ...], *, num_rows: int, device: torch.device) -> BucketLayout:
        multiple = CPU_LENGTH_MULTIPLE if device.type == "cpu" else GPU_LENGTH_MULTIPLE
        lengths = np.diff(np.asarray(offsets, dtype=np.int64))
        rounded = -(-lengths // multiple) * multiple
        buckets: list[Bucket] = []
        rows_P = np.zeros(int(rounded.sum()), dtype=np.int64)
        is_padding_P = np.ones(len(rows_P), dtype=np.bool_)
        places_T = np.zeros(num_rows, dtype=np.int64)
        place = 0
        for length in np.unique(rounded[rounded > 0]).tolist():
            indices = np.flatnonzero(rounded == length).tolist()
            buckets.append(Bucket(place, len(indices), length))
            for index in indices:
                start, stop = offsets[index], offsets[index + 1]
                end = place + stop - start
                rows_P[place:end] = np.arange(start, stop)
                rows_P[end : place + length] = start
                is_padding_P[place:end] = False
                places_T[start:stop] = np.arange(place, end)
                place += length
        padding = np.flatnonzero(is_padding_P)
        is_stream = np.array_equal(rows_P, np.arange(num_rows))
        on_rows, on_padding, on_places = stage_together([rows_P, padding, places_T], device)
        return cls(tuple(buckets), on_rows, on_padding, on_places, offsets[-1], is_stream)

    def gather(self, x_TXE: Tensor) -> Tensor:
        """Return the padded rows [P, X, E]."""
        padded: Tensor = _ToBuckets.apply(x_TXE, self)
        return padded

    def scatter(self, x_PXE: Tensor) -> Tensor:
        """Return the stream rows [T, X, E], zeros in rows of no sequence."""
        rows: Tensor = _FromBuckets.apply(x_PXE, self)
        return rows

    def by_bucket(self, x_PXE: Tensor) -> Sequence[Tensor]:
        # one split: the gradient of each slice would be as large as all rows
        return [x_PXE] if len(self.buckets) == 1 else x_PXE.split([each.count * each.length for each in self.buckets])

    def pick_padded(self, x_TXE: Tensor) -> Tensor:
        return x_TXE.index_select(0, self.rows_P)

    def pick_rows(self, x_PXE: Tensor) -> Tensor:
        if not self.num_used:
            return x_PXE.new_zeros(len(self.places_T), *x_PXE.shape[1:])
        x_TXE = x_PXE.index_select(0, self.places_T)
        x_TXE[self.num_used :] = 0
        return x_TXE


class _ToBuckets(torch.autograd.Function):
    """Padding gets no gradient (causality makes it exactly zero), so backward is one gather, without adds."""

    @staticmethod
    def forward(ctx: Any, x_TXE: Tensor, layout: BucketLayout) -> Tensor:
        ctx.layout = layout
        return layout.pick_padded(x_TXE)

    @staticmethod
    def backward(ctx: Any, dy_PXE: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.pick_rows(dy_PXE), None


class _FromBuckets(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PXE: Tensor, layout: BucketLayout) -> Tensor:
        ctx.layout = layout
        return layout.pick_rows(x_PXE)

    @staticmethod
    def backward(ctx: Any, dy_TXE: Tensor) -> tuple[Tensor, None]:
        dy_PXE = ctx.layout.pick_padded(dy_TXE)
        return dy_PXE.index_fill_(0, ctx.layout.padding, 0), None
