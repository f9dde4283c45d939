"""Which rows each expert gets: the pairs of a token and an expert, sorted by expert.

Shapes:  T rows of the stream · J experts of a token · S pairs, T * J · P rows of the sorted storage · E experts
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from cohort.kernels.segments import SegmentTable

__all__ = ["ExpertRows", "RoutedRows", "route_rows"]

_MULTIPLE, _LEAST = 16, 32


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertRows:
    """The rows of one expert in the sorted storage.

    Attributes:
        expert: Its number.
        rows: Where they are in the storage.
        segments: Which of them are whose; numbered from 0.
    """

    expert: int
    rows: slice
    segments: SegmentTable


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedRows:
    """A stream sorted by expert; within an expert the rows stand as in the stream, so by slot and sample.

    Attributes:
        source_P: The row of the stream that each row of the storage is; T for a row that is there to fill up.
        place_S: Where each pair is in the storage; that of a pair without an expert is P.
        experts: Those that have rows, ascending.
    """

    source_P: Tensor
    place_S: Tensor
    experts: tuple[ExpertRows, ...]

    def gather(self, x_TD: Tensor) -> Tensor:
        """Return the rows [P, D] of a stream as they stand in the storage; those that fill up are zero."""
        zero_1D = x_TD.new_zeros(1, x_TD.shape[1])
        return torch.cat([x_TD, zero_1D]).index_select(0, self.source_P)

    def of_pairs(self, y_PN: Tensor) -> Tensor:
        """Return the row [S, N] of each pair; zero for a pair without an expert."""
        return torch.cat([y_PN, y_PN.new_zeros(1, y_PN.shape[1])]).index_select(0, self.place_S)


def route_rows(index_TJ: Tensor, *, num_experts: int, segments: SegmentTable, pads: bool) -> RoutedRows:
    """Sort the pairs of a stream by expert.

    Args:
        index_TJ: The experts of each token; numbers from ``num_experts`` on name none.
        segments: Rows of each slot and sample of the stream.
        pads: Whether each expert's rows are filled up to a multiple of 16, at least 32: a row's bits are then its own
            on a CPU, whatever other rows the expert gets.
    """
    num_tokens, each = index_TJ.shape
    expert_S = index_TJ.detach().reshape(-1).cpu()
    order_S = torch.argsort(expert_S, stable=True)
    samples = segments.samples
    # a row behind all samples belongs to none: one more piece, which has no entry
    stops = torch.tensor([span.stop for span in samples], dtype=torch.long)
    sample_S = torch.bucketize(torch.arange(num_tokens).repeat_interleave(each), stops, right=True)
    pieces = len(samples) + 1
    counts = torch.bincount(expert_S.clamp_max(num_experts) * pieces + sample_S, minlength=(num_experts + 1) * pieces)
    counts_EM = counts.view(num_experts + 1, pieces).tolist()

    sources, places, experts, start, row = [], torch.full_like(expert_S, -1), [], 0, 0
    for expert, lengths in enumerate(counts_EM[:num_experts]):
        count = sum(lengths)
        if count == 0:
            continue
        pairs = order_S[start : start + count]
        size = max(-(-count // _MULTIPLE) * _MULTIPLE, _LEAST) if pads else count
        source = torch.full((size,), num_tokens, dtype=torch.long)
        source[:count] = pairs // each
        sources.append(source)
        places[pairs] = torch.arange(row, row + count)
        experts.append(
            ExpertRows(expert=expert, rows=slice(row, row + size), segments=_segments(segments, lengths, size))
        )
        start, row = start + count, row + size
    source_P = torch.cat(sources) if sources else torch.zeros(0, dtype=torch.long)
    places[places < 0] = row
    device = index_TJ.device
    return RoutedRows(source_P=source_P.to(device), place_S=places.to(device), experts=tuple(experts))


def _segments(stream: SegmentTable, lengths: list[int], size: int) -> SegmentTable:
    """Return the segments of an expert's rows, of which each sample of the stream has that many."""
    counts = [0] * stream.num_slots
    for span, length in zip(stream.samples, lengths[:-1], strict=True):
        if span.slot >= 0:
            counts[span.slot] += length
    ends = [0, *accumulate(lengths[:-1])]
    samples = tuple(
        type(span)(begin, end, span.slot)
        for span, begin, end in zip(stream.samples, ends[:-1], ends[1:], strict=True)
        if end > begin
    )
    return SegmentTable(num_rows=size, offsets=(0, *accumulate(counts)), samples=samples)
