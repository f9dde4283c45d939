"""Synchronous halving, against decisions worked out by hand."""

from __future__ import annotations

import math

from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.rungs import rung_shares, rung_steps_at
from cohort.tuning.replay import replay_curves
from tests.tuning.loss_curves import by_rank, curve


def test_a_third_passes_each_rung() -> None:
    settings = by_rank(rule="halving", warmup_fraction=0.1, reduction_factor=3)
    curves = [curve(i, validation=[1.0 + i] * 10) for i in range(9)]
    # rungs at 10 %, 30 %, 90 %: 9 -> 3 -> 1 -> 1
    report = replay_curves(curves, settings)
    assert report.steps == {0: 10, 1: 3, 2: 3} | dict.fromkeys(range(3, 9), 1)
    kept = [(d.trial_id, d.step) for d in report.decisions if d.kind is DecisionKind.KEEP]
    assert kept == [(0, 1), (1, 1), (2, 1), (0, 3), (0, 9)]


def test_trials_of_different_length_meet_at_shares() -> None:
    settings = by_rank(rule="halving", warmup_fraction=0.25, reduction_factor=2)
    curves = [curve(0, validation=[1.0] * 4), curve(1, validation=[2.0] * 8, warmup_steps=2)]
    report = replay_curves(curves, settings)
    assert report.steps == {0: 4, 1: 2}


def test_an_ending_opens_the_rungs_it_held_up() -> None:
    settings = by_rank(rule="halving", warmup_fraction=0.25, reduction_factor=2)
    curves = [curve(i, validation=[1.0 + i] * 4) for i in range(4)]
    curves[1] = curve(1, validation=[2.0, math.nan, 2.0, 2.0])
    report = replay_curves(curves, settings)
    # 0 and 1 pass the first rung; 1 ends before the second, which 0 then passes alone
    assert report.steps == {0: 4, 1: 2, 2: 1, 3: 1}


def test_rungs_of_a_short_trial_stay_apart() -> None:
    candidate = Candidate(trial_id=0, planned_steps=4, warmup_steps=1, evaluation_steps=(1, 2, 3, 4))
    assert rung_steps_at(candidate, rung_shares(0.05, reduction_factor=3)) == (1, 2, 3)
    candidate = Candidate(trial_id=0, planned_steps=2, warmup_steps=1, evaluation_steps=(1, 2))
    assert rung_steps_at(candidate, rung_shares(0.05, reduction_factor=3)) == (1,)
