"""Rungs at shares of a trial's own training."""

from __future__ import annotations

from fractions import Fraction

from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.rungs import rung_shares, rung_steps_at


def test_rungs_are_a_factor_apart_and_below_the_end() -> None:
    assert rung_shares(0.1, reduction_factor=3) == (Fraction(1, 10), Fraction(3, 10), Fraction(9, 10))
    assert rung_shares(0.5, reduction_factor=2) == (Fraction(1, 2),)
    assert rung_shares(1.0, reduction_factor=2) == ()


def test_a_rung_is_met_at_the_first_evaluation_past_it_and_never_at_the_end() -> None:
    shares = rung_shares(0.1, reduction_factor=3)
    long = Candidate(trial_id=0, planned_steps=100, warmup_steps=10, evaluation_steps=(10, 40, 80, 100))
    assert rung_steps_at(long, shares) == (10, 40), "90 % is past every evaluation but the last"
    short = Candidate(trial_id=1, planned_steps=3, warmup_steps=1, evaluation_steps=(1, 2, 3))
    assert rung_steps_at(short, shares) == (1, 2), "two rungs that fall together are met one after the other"
