"""The bootstrap: it agrees with known intervals, and says nothing of what it cannot know."""

from __future__ import annotations

import math
import random

import pytest

from cohort.core.statistics.bootstrap_intervals import difference_interval, mean_interval


def test_the_bootstrap_agrees_with_the_normal_interval_of_many_rows() -> None:
    rng = random.Random(0)
    values = [rng.gauss(2.0, 1.0) for _ in range(900)]
    found = mean_interval(values)
    assert found is not None
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    half = 1.96 * spread / math.sqrt(len(values))
    # 2,000 resamples give each end to about 3 % of the width; four times that is no accident
    assert found.low == pytest.approx(mean - half, abs=0.24 * half)
    assert found.high == pytest.approx(mean + half, abs=0.24 * half)
    assert mean_interval(values) == found, "equal rows give equal ends"
    assert mean_interval(values, seed=1) != found


def test_weights_make_a_mean_per_token() -> None:
    # a row of constant loss per token has no spread, however long it is
    found = mean_interval([2.0, 6.0, 20.0], weights=[1, 3, 10])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


def test_a_paired_difference_is_narrower_than_two_intervals() -> None:
    rng = random.Random(1)
    hard = [rng.gauss(0.0, 3.0) for _ in range(100)]
    better, worse = [h + rng.gauss(0.0, 0.1) for h in hard], [h + 0.2 + rng.gauss(0.0, 0.1) for h in hard]
    own, paired = mean_interval(better), difference_interval(better, worse)
    assert own is not None
    assert paired is not None
    assert not paired.holds(0.0)
    assert paired.high - paired.low < 0.1 * (own.high - own.low)


def test_one_row_or_nan_gives_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, math.nan]) is None
    with pytest.raises(ValueError, match="one for each row"):
        mean_interval([1.0, 2.0], weights=[1])
    with pytest.raises(ValueError, match="the same rows"):
        difference_interval([1.0, 2.0], [1.0])
