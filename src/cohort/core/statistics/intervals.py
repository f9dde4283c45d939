"""95 % intervals of shares: Wilson's, and Newcombe's for two on the same rows.

An interval says how far a number could lie from what other rows of the same kind would give. It does not cover the
choice among many trials: the best of 60 is partly the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "CONFIDENCE",
    "Interval",
    "share_difference_interval",
    "share_interval",
]

CONFIDENCE = 0.95
_Z = 1.959963984540054
"""The standard normal's 97.5 % quantile."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The ends of a 95 % interval, in the unit of its number."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def share_interval(num_hits: int, num_rows: int) -> Interval:
    """Return Wilson's interval of ``num_hits / num_rows``: it stays within 0 and 1, and has a width at 0 % and 100 %.

    Source: E. B. Wilson, 1927. Without rows nothing is known: 0 to 1.

    Raises:
        ValueError: hits below 0, or more hits than rows.
    """
    if not 0 <= num_hits <= num_rows:
        raise ValueError(f"{num_hits} hits of {num_rows} rows: there must be 0 to {num_rows}")
    if num_rows == 0:
        return Interval(low=0.0, high=1.0)
    share, extra = num_hits / num_rows, _Z * _Z / num_rows
    middle = (share + extra / 2) / (1 + extra)
    half = _Z * math.sqrt(share * (1 - share) / num_rows + extra / (4 * num_rows)) / (1 + extra)
    # at the ends the exact bound is 0 or 1, which rounding may miss by one bit
    low = 0.0 if num_hits == 0 else max(0.0, middle - half)
    return Interval(low=low, high=1.0 if num_hits == num_rows else min(1.0, middle + half))


def share_difference_interval(hits: Sequence[float], others: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of two shares of the same rows, ``hits`` less ``others`` (each 0 or 1).

    It has a width even where both agree on every row, which resampling the rows would miss. None without rows.

    Source: R. G. Newcombe, Statistics in Medicine 17 (1998), method 10.
    """
    pairs = list(zip(hits, others, strict=True))
    if not pairs:
        return None
    num_rows = len(pairs)
    both, one, other, neither = (pairs.count(kind) for kind in ((1, 1), (1, 0), (0, 1), (0, 0)))
    first, second = share_interval(both + one, num_rows), share_interval(both + other, num_rows)
    share, share_2 = (both + one) / num_rows, (both + other) / num_rows
    spread = (both + one) * (other + neither) * (both + other) * (one + neither)
    agreement: float = both * neither - one * other
    # his correction: an agreement that a row or two make says nothing
    agreement = max(0.0, agreement - num_rows / 2) if agreement > 0 else agreement
    phi = agreement / math.sqrt(spread) if spread else 0.0

    def half(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    gap = share - share_2
    low = gap - half(share - first.low, second.high - share_2)
    return Interval(low=low, high=gap + half(first.high - share, share_2 - second.low))
