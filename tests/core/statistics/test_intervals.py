"""Intervals of shares: known values, and the ends of the scale."""

from __future__ import annotations

import pytest

from cohort.core.statistics.intervals import Interval, share_difference_interval, share_interval


def test_wilson_gives_the_textbook_values() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
    for hits, rows, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)):
        found = share_interval(hits, rows)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_a_share_of_nothing_or_all_still_has_a_width() -> None:
    assert share_interval(0, 20).low == 0.0
    assert 0.1 < share_interval(0, 20).high < 0.2
    assert share_interval(20, 20).high == 1.0
    assert 0.8 < share_interval(20, 20).low < 0.9
    assert share_interval(0, 0) == Interval(low=0.0, high=1.0)
    with pytest.raises(ValueError, match="3 hits of 2 rows"):
        share_interval(3, 2)


def test_newcombes_example_of_paired_shares() -> None:
    # table III of his paper, 20, 12, 2 and 16 pairs: 0.2 with 0.0562 to 0.3290 by method 10
    pairs = [(1, 1)] * 20 + [(1, 0)] * 12 + [(0, 1)] * 2 + [(0, 0)] * 16
    found = share_difference_interval([a for a, _ in pairs], [b for _, b in pairs])
    assert found is not None
    assert [found.low, found.high] == pytest.approx([0.0562, 0.3290], abs=5e-4)
