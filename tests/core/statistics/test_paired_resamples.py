"""Resamples of rows say how often a difference would have turned round: rarely for a real one, often for luck."""

from __future__ import annotations

import time
import tracemalloc
from statistics import NormalDist

import numpy as np
import pytest

from cohort.core.statistics.bootstrap_intervals import difference_interval
from cohort.core.statistics.paired_resamples import not_worse


def normal_rows(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_equal_rows_are_never_told_apart() -> None:
    assert not_worse([[1.0] * 16], [1.0] * 16, risk=0.025) == [1.0]


def test_a_difference_on_every_row_is_certain() -> None:
    assert not_worse([[2.0] * 16, [0.5] * 16], [1.0] * 16, risk=0.025) == [0.0, 1.0]


def test_the_chance_is_one_end_of_the_bootstraps_interval() -> None:
    # many rows: nothing is widened to speak of, and the two ways must agree about which intervals hold 0
    best = normal_rows(0, 400)
    for shift in (0.02, 0.08, 0.1, 0.12, 0.2):
        other = best + shift + normal_rows(1, 400)
        (chance,) = not_worse([other.tolist()], best.tolist(), risk=0.025)
        interval = difference_interval(other.tolist(), best.tolist())
        assert interval is not None
        assert (chance <= 0.025) == (interval.low > 0)


def test_of_very_many_rows_runs_are_drawn_and_say_the_same() -> None:
    # 2000 resamples of 20,000 rows would be 320 MB, four times over while they are made
    best, num_rows = normal_rows(0, 20_000), 20_000
    tracemalloc.start()
    for shift in (0.0, 0.01, 0.02, 0.03):
        other = best + shift + normal_rows(1, num_rows)
        (chance,) = not_worse([other.tolist()], best.tolist(), risk=0.025)
        gaps = other - best
        expected = NormalDist(gaps.mean(), gaps.std() / num_rows**0.5).cdf(0)
        # the standard error of a share of 2000 is at most 0.011
        assert chance == pytest.approx(expected, abs=0.035)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_a_risk_next_to_nothing_has_a_quantile() -> None:
    assert not_worse([[2.0] * 16, [1.0] * 16], [1.0] * 16, risk=1e-300) == [0.0, 1.0]


@pytest.mark.parametrize(("num_rows", "most"), [(8, 0.04), (16, 0.035), (64, 0.032)])
def test_trials_that_are_equal_are_seldom_called_worse(num_rows: int, most: float) -> None:
    # 2.5 % is what was asked for; the bootstrap alone calls 5 % worse on 8 rows
    gaps = normal_rows(num_rows, 4000, num_rows)
    shares = not_worse(gaps.tolist(), [0.0] * num_rows, risk=0.025)
    assert 0.015 < np.mean([share <= 0.025 for share in shares]) < most


def test_the_order_and_scale_of_trials_change_nothing() -> None:
    rows, best = normal_rows(2, 12, 32) + 0.2, normal_rows(3, 32)
    together = not_worse(rows.tolist(), best.tolist(), risk=0.025)
    assert together == [not_worse([row], best.tolist(), risk=0.025)[0] for row in rows.tolist()]
    assert together == not_worse((1024 * rows).tolist(), (1024 * best).tolist(), risk=0.025)


def test_a_grid_is_compared_in_milliseconds() -> None:
    rows, best = normal_rows(4, 60, 128).tolist(), normal_rows(5, 128).tolist()
    # the resamples are made once
    not_worse(rows, best, risk=0.025)
    # of this process: other processes of a busy machine must not make it slow
    begun = time.process_time()
    not_worse(rows, best, risk=0.025)
    # 5 ms on one core
    assert time.process_time() - begun < 0.05
