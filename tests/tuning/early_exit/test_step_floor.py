"""The floor is one share for all trials, set by the shortest."""

from __future__ import annotations

from fractions import Fraction

from cohort.tuning.early_exit.step_floor import StepFloor
from tests.tuning.loss_curves import curve


def floor_of(*planned: int, least: int = 6) -> StepFloor:
    floor = StepFloor(least)
    for trial_id, steps in enumerate(planned):
        floor.add(curve(trial_id, validation=[1.0] * steps).candidate)
    return floor


def test_the_shortest_trial_sets_the_share_of_all() -> None:
    assert floor_of(1000, 125).share == Fraction(6, 125)
    assert floor_of(30).share == Fraction(1, 5)


def test_a_trial_too_short_for_the_floor_leaves_nothing_to_compare() -> None:
    assert floor_of(1000, 4).share == 1


def test_one_step_is_no_floor() -> None:
    assert floor_of(4, least=1).share == 0


def test_it_is_fixed_when_it_is_first_asked_for() -> None:
    floor = floor_of(60)
    assert floor.share == Fraction(1, 10)
    floor.add(curve(9, validation=[1.0] * 8).candidate)
    assert floor.share == Fraction(1, 10)


def test_shares_below_it_come_together_there() -> None:
    shares = (Fraction(1, 20), Fraction(3, 20), Fraction(9, 20))
    assert floor_of(1000).lifted(shares) == shares
    assert floor_of(60).lifted(shares) == (Fraction(1, 10), *shares[1:])
    assert floor_of(20).lifted(shares) == (Fraction(3, 10), Fraction(9, 20))
