"""Where the sequences of a packed stream begin and end, as recurrent functions take it.

Shapes:  T rows of the stream · B sequences of a group · L rows of the longest one, rounded
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["LENGTH_MULTIPLE", "PaddedGroup", "SequenceBounds"]

# the rows that the chunked forms of a recurrence compute together
LENGTH_MULTIPLE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedGroup:
    """Sequences of about one length, side by side.

    Attributes:
        source_BL: The row of the stream that each place holds; T where there is none.
        place_R: The places [B * L] that hold a row.
        row_R: The rows that they hold.
    """

    source_BL: Tensor
    place_R: Tensor
    row_R: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceBounds:
    """The bounds of one pass; tensors are made when a layer first wants them, and kept for the other layers.

    Attributes:
        ends: The first row of each sequence, and the row behind the last one. Rows behind that are of no sequence:
            they are one more here, which none of the others sees.
    """

    ends: tuple[int, ...]
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def pieces(self, num_rows: int) -> list[tuple[int, int]]:
        """Return first row and stop of each piece of a stream of ``num_rows``; none is empty."""
        bounds = (*self.ends, num_rows) if self.ends[-1] < num_rows else self.ends
        return [(start, stop) for start, stop in pairwise(bounds) if stop > start]

    def offsets(self, num_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the bounds as int64, on ``device`` and on the host."""
        key = ("offsets", num_rows, device)
        if key not in self._made:
            host = torch.tensor([0, *(stop for _, stop in self.pieces(num_rows))])
            self._made[key] = (host.to(device), host)
        found: tuple[Tensor, Tensor] = self._made[key]
        return found

    def with_gaps(self, num_rows: int, gap: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return a stream with ``gap`` empty rows between its pieces, and where each row is in it.

        The first tensor has the row that each of its rows is, or T for an empty one.
        """
        key = ("gaps", num_rows, gap, device)
        if key not in self._made:
            places = torch.cat(
                [torch.arange(start, stop) + index * gap for index, (start, stop) in enumerate(self.pieces(num_rows))]
            )
            source = torch.full((int(places[-1]) + 1,), num_rows)
            source[places] = torch.arange(num_rows)
            self._made[key] = (source.to(device), places.to(device))
        found: tuple[Tensor, Tensor] = self._made[key]
        return found

    def groups(self, num_rows: int, device: torch.device) -> list[PaddedGroup]:
        """Return the pieces in groups of lengths that differ by a factor of two at most."""
        key = ("groups", num_rows, device)
        if key not in self._made:
            by_length = defaultdict(list)
            for start, stop in self.pieces(num_rows):
                by_length[max(LENGTH_MULTIPLE, 1 << (stop - start - 1).bit_length())].append((start, stop))
            self._made[key] = [_group(own, num_rows, device) for _, own in sorted(by_length.items())]
        found: list[PaddedGroup] = self._made[key]
        return found


def _group(pieces: list[tuple[int, int]], num_rows: int, device: torch.device) -> PaddedGroup:
    longest = -(-max(stop - start for start, stop in pieces) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    source_BL = torch.full((len(pieces), longest), num_rows)
    for index, (start, stop) in enumerate(pieces):
        source_BL[index, : stop - start] = torch.arange(start, stop)
    place_R = (source_BL.view(-1) < num_rows).nonzero()[:, 0]
    row_R = source_BL.view(-1)[place_R]
    return PaddedGroup(source_BL=source_BL.to(device), place_R=place_R.to(device), row_R=row_R.to(device))
