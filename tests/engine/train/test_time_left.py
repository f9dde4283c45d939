"""The time to the end of a task is known once nothing but steps is left, and by the steps that were taken last."""

from __future__ import annotations

import math

from cohort.engine.train.time_left import TimeLeft


def test_by_the_steps_since_the_boundary_before() -> None:
    left = TimeLeft()
    assert left.at_boundary(10.0, {1: 40, 2: 20}) == math.inf, "no step was timed"
    # ten steps in five seconds
    assert left.at_boundary(15.0, {1: 30, 2: 10}) == 15.0
    # one that joins or leaves changes nothing for the others
    assert left.at_boundary(19.0, {1: 28, 3: 50}) == 100.0
    assert left.at_boundary(20.0, {3: 49}) == 49.0


def test_unknown_while_some_trials_wait_or_none_steps() -> None:
    left = TimeLeft()
    left.at_boundary(0.0, {1: 5})
    assert left.at_boundary(1.0, {}) == math.inf
    assert left.at_boundary(2.0, {1: 4}) == math.inf, "not since the boundary before"
    assert left.at_boundary(3.0, {1: 4}) == math.inf
    assert left.at_boundary(4.0, {1: 5}) == math.inf, "put back to an earlier state"
    assert left.at_boundary(5.0, {1: 4}) == 4.0
