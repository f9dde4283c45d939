"""Measured numbers with their intervals, from what an adapter has on each row: alone, and against another adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

__all__ = ["Estimate", "RowValues"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number that was measured on some rows, with its 95 % interval over other rows of their kind.

    Attributes:
        low, high: The ends of the interval; None where one row, or a value that is not finite, says nothing of others.
        num_rows: Rows it was measured on.
    """

    value: float
    low: float | None
    high: float | None
    num_rows: int

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is known to lie outside the interval: the difference is more than noise."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def negated(self) -> Estimate:
        """The same difference seen from the other side; the lower end becomes the upper one of its negative."""
        low, high = (None, None) if self.low is None or self.high is None else (-self.high, -self.low)
        return Estimate(value=-self.value, low=low, high=high, num_rows=self.num_rows)


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """What one adapter has on each row. Its value on all of them is ``sum(values) / sum(weights)``.

    Attributes:
        values: The summed loss of a row's trained tokens, or its score.
        weights: The number of these tokens; 1 for a score.
        is_unbounded: The values are no shares of anything, even where each happens to be 0 or 1: a margin of 0.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    is_unbounded: bool = False

    @classmethod
    def of_scores(cls, scores: tuple[float, ...], *, is_unbounded: bool = False) -> Self:
        return cls(values=scores, weights=(1.0,) * len(scores), is_unbounded=is_unbounded)

    @property
    def are_hits(self) -> bool:
        """Whether each row counts as a hit or a miss, so that the value is a share."""
        if self.is_unbounded:
            return False
        return all(weight == 1 for weight in self.weights) and all(value in (0, 1) for value in self.values)

    @property
    def value(self) -> float:
        """The value on all rows; NaN without rows."""
        total = sum(self.weights)
        return sum(self.values) / total if total else math.nan
