"""Shares of a count, rounded up without floating-point surprises."""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = ["ceil_share", "exact_fraction"]


def exact_fraction(share: float) -> Fraction:
    """Return ``share`` as the decimal its user wrote: 0.07 is 7/100, not the nearest binary float."""
    # repr gives the shortest decimal that reads back as the same float, which is what was written.
    return Fraction(repr(float(share)))


def ceil_share(share: float | Fraction, count: int) -> int:
    """Return ``ceil(share * count)`` in exact arithmetic."""
    # In floats 0.07 * 100 is 7.000000000000001 and would round up to 8.
    exact = share if isinstance(share, Fraction) else exact_fraction(share)
    return math.ceil(exact * count)
