"""Curves by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.tuning.trajectory import Point, Trajectory, curve_noise, least_squares_slope


def test_the_moving_average_begins_at_the_first_loss() -> None:
    trajectory = Trajectory(ema_weight=0.1)
    averages = []
    for loss in [4.0, 2.0, 0.0]:
        trajectory.add_step(loss, num_tokens=5)
        averages.append(trajectory.ema)
    # 4; 0.1 * 2 + 0.9 * 4 = 3.8; 0.1 * 0 + 0.9 * 3.8 = 3.42
    assert averages == pytest.approx([4.0, 3.8, 3.42], rel=1e-15)
    assert (trajectory.num_steps, trajectory.num_tokens, trajectory.last_loss) == (3, 15, 0.0)


def test_both_series_get_a_point_at_each_evaluation() -> None:
    trajectory = Trajectory(ema_weight=0.5)
    for step, loss in enumerate([4.0, 2.0, 1.0, 1.0], start=1):
        trajectory.add_step(loss)
        if step % 2 == 0:
            trajectory.add_evaluation(loss + 1, num_tokens=7)
    # averages: 4, 3, 2, 1.5
    assert trajectory.train == [Point(step=2, value=3.0), Point(step=4, value=1.5)]
    assert trajectory.validation == [Point(step=2, value=3.0), Point(step=4, value=2.0)]
    assert trajectory.best_validation == Point(step=4, value=2.0)
    assert trajectory.num_evaluation_tokens == 14
    assert trajectory.slopes(2) == (-1.5, -1.0)
    assert trajectory.slopes(3) is None


def test_the_best_is_the_earliest_of_equals_and_finite() -> None:
    trajectory = Trajectory()
    for loss in [float("nan"), 1.0, 1.0, float("inf"), 2.0]:
        trajectory.add_step(1.0)
        trajectory.add_evaluation(loss)
    assert trajectory.best_validation == Point(step=2, value=1.0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_the_slope_is_numpys(values: list[float]) -> None:
    expected = float(np.polyfit(np.arange(len(values)), values, 1)[0])
    # polyfit solves by SVD: errors of some eps times the values' size
    assert least_squares_slope(values) == pytest.approx(expected, abs=1e-11)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_slope_of_two_points_is_their_difference(first: float, second: float) -> None:
    assert least_squares_slope([first, second]) == second - first


def test_noise_is_the_jumps_and_not_the_slope() -> None:
    assert curve_noise([4.0, 3.0, 2.0, 1.0]) == 0.0
    assert curve_noise([1.0, 2.0, 1.0, 2.0, 1.0]) == 1.0
    # one spike among calm points does not count
    assert curve_noise([1.0, 1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0]) == 0.0
    assert curve_noise([1.0, 2.0]) == math.inf
