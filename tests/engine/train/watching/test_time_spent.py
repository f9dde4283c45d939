"""Seconds by activity, each counted once."""

from __future__ import annotations

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.runs.facts import Activity


def _fail_after_a_second(clock: ManualClock) -> None:
    clock.advance(1)
    raise RuntimeError


def test_an_inner_activity_interrupts_the_outer_one() -> None:
    clock = ManualClock()
    spent = TimeSpent(clock)
    clock.advance(100)
    with spent.on(Activity.TRAIN):
        clock.advance(1)
    clock.advance(100)
    with spent.on(Activity.EVALUATE):
        clock.advance(2)
        with spent.on(Activity.GENERATE):
            clock.advance(4)
        clock.advance(8)
    assert spent.take() == {Activity.TRAIN: 1, Activity.EVALUATE: 10, Activity.GENERATE: 4}
    assert spent.take() == {}


def test_what_was_taken_is_not_counted_again() -> None:
    clock = ManualClock()
    spent = TimeSpent(clock)
    with spent.on(Activity.TRAIN):
        clock.advance(1)
        assert spent.take() == {Activity.TRAIN: 1}
        clock.advance(2)
    assert spent.take() == {Activity.TRAIN: 2}


def test_an_error_ends_the_activity() -> None:
    clock = ManualClock()
    spent = TimeSpent(clock)
    with pytest.raises(RuntimeError), spent.on(Activity.TRAIN):
        _fail_after_a_second(clock)
    clock.advance(50)
    assert spent.take() == {Activity.TRAIN: 1}
