"""Loss curves: the average that the rules read, in few points."""

from __future__ import annotations

import math

import pytest

from cohort.report.drawings.loss_curves import exponential_average, thinned


def test_the_running_average_is_the_one_that_the_rules_read() -> None:
    assert [value for _, value in exponential_average([(1, 2.0), (2, 1.0), (3, 1.0)], weight=0.1)] == pytest.approx(
        [2, 1.9, 1.81]
    )
    assert math.isnan(exponential_average([(1, 2.0), (2, math.nan), (3, 1.0)], weight=0.1)[-1][1])


def test_thinning_keeps_both_ends() -> None:
    curve = [(step, float(step)) for step in range(1, 1000)]
    kept = thinned(curve, limit=100)
    assert len(kept) <= 101
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert thinned(curve[:5], limit=100) == curve[:5]
