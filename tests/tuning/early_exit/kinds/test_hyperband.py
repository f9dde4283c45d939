"""Brackets of Hyperband: their sizes, rungs and end."""

from __future__ import annotations

import pytest

from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.kinds.hyperband import HyperbandRule
from cohort.tuning.replay import replay_curves
from tests.tuning.loss_curves import by_rank, curve


def test_brackets_are_dealt_in_the_papers_proportions() -> None:
    # eta 3, first share 1/9: s_max 2, sizes ceil(3 / (s + 1) * 3^s) = 3, 5, 9
    rule = HyperbandRule(first_share=0.11, reduction_factor=3)
    candidate = curve(0, validation=[1.0] * 9).candidate
    groups = [
        rule.group(
            Candidate(
                trial_id=i,
                planned_steps=candidate.planned_steps,
                warmup_steps=1,
                evaluation_steps=candidate.evaluation_steps,
            )
        )
        for i in range(1700)
    ]
    counts = [groups.count(bracket) for bracket in range(3)]
    # binomial: standard deviations are about 16, 19 and 20
    for count, expected in zip(counts, [300, 500, 900], strict=True):
        assert abs(count - expected) < 90


def test_brackets_begin_at_their_own_rungs() -> None:
    rule = HyperbandRule(first_share=0.11, reduction_factor=3)
    steps = {}
    for trial_id in range(40):
        candidate = curve(trial_id, validation=[1.0] * 9).candidate
        steps[rule.group(candidate)] = rule.rung_steps(candidate)
    assert steps == {0: (), 1: (3,), 2: (1, 3)}


@pytest.mark.parametrize("num_slots", [1, 4, None])
def test_a_run_ends_and_keeps_the_best(num_slots: int | None) -> None:
    curves = [curve(i, validation=[2.0 - 0.01 * i] * 9) for i in range(30)]
    settings = by_rank(rule="hyperband", warmup_fraction=0.11)
    report = replay_curves(curves, settings, num_slots=num_slots)
    assert report.steps[29] == 9
    assert 0.2 < report.saved_share < 0.8
