"""Shares are what their user wrote, not the float nearest to it."""

from __future__ import annotations

from fractions import Fraction

from cohort.tuning.share_counts import ceil_share, exact_fraction


def test_a_share_is_rounded_up_in_exact_arithmetic() -> None:
    assert 0.07 * 100 > 7, "what floats would round up to 8"
    assert ceil_share(0.07, 100) == 7
    assert ceil_share(0.3, 10) == 3
    assert ceil_share(0.25, 5) == 2
    assert ceil_share(Fraction(1, 3), 9) == 3
    assert exact_fraction(0.1) == Fraction(1, 10)
