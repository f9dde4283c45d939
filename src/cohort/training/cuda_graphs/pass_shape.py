"""The sizes of a pass that its launches must know beforehand, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cohort.data.packing import SlotSample

__all__ = ["PassShape"]

# the cost of a padded attention row in rows of the stream: its share of a layer's work
PADDED_ROW_COST = 0.05
# the cost of a trained row in the loss head, likewise
TRAINED_ROW_COST = 0.15


@dataclass(frozen=True, kw_only=True, order=True)
class PassShape:
    """The sizes that the launches of a pass must know beforehand.

    Attributes:
        num_rows: T, more than the samples have: the last row is always filler.
        num_sequences: S.
        length: L.
        num_trained: M.
    """

    num_rows: int
    num_sequences: int
    length: int
    num_trained: int

    @classmethod
    def of(cls, entries: Sequence[SlotSample]) -> PassShape:
        """Return what a pass over ``entries`` needs."""
        lengths = [len(entry.sample.tokens) for entry in entries]
        return cls(
            num_rows=sum(lengths) + 1,
            num_sequences=len(entries),
            length=max(lengths),
            num_trained=sum(int(np.count_nonzero(entry.sample.trained[1:])) for entry in entries),
        )

    def holds(self, need: PassShape) -> bool:
        return (
            self.num_rows >= need.num_rows
            and self.num_sequences >= need.num_sequences
            and self.length >= need.length
            and self.num_trained >= need.num_trained
        )

    def cost(self, *, padded: bool) -> float:
        """Return the approximate work, in rows of the stream; ``padded``: whether attention pads its sequences."""
        padding = PADDED_ROW_COST * (self.num_sequences + 1) * self.length if padded else 0.0
        return self.num_rows + TRAINED_ROW_COST * self.num_trained + padding
