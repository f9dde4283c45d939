"""Recorded curves through a study."""

from __future__ import annotations

import math

import pytest

from cohort.tuning.decisions import Reason
from cohort.tuning.evaluation_times import EvaluationSettings, plan_candidate
from cohort.tuning.replay import RecordedCurve, replay_curves
from cohort.tuning.trajectory import Trajectory
from tests.tuning.loss_curves import by_rank, curve


def test_the_two_selections_alone_save_what_they_must() -> None:
    """60 trials, 5 % warm-up, 40 % kept, 15 % of all at 20 %: 1 - (0.05 + 0.4 * 0.15 + 0.15 * 0.8) = 77 %."""
    curves = []
    for trial_id in range(60):
        candidate = plan_candidate(trial_id, planned_steps=100, warmup_fraction=0.05, settings=EvaluationSettings())
        losses = dict.fromkeys(candidate.evaluation_steps, 1.0 + trial_id / 100)
        train = (1.0 + trial_id / 100,) * 100
        curves.append(RecordedCurve(candidate=candidate, train_losses=train, validation_losses=losses, batch_size=2))
    reports = [replay_curves(curves, by_rank(), num_slots=slots) for slots in (1, 8, None)]
    for report in reports:
        assert report.saved_share == pytest.approx(0.77, abs=1e-12)
        assert report.samples_full == 12_000
        assert report.samples_saved_by == {"underperforming": (36 * 95 + 15 * 80) * 2, "completed": 0}
        assert report.best is not None
        assert report.best.trial_id == 0
    assert reports[0].steps == reports[1].steps == reports[2].steps


def test_a_record_that_is_too_short_is_refused() -> None:
    short = curve(0, validation=[1.0, 1.0, 1.0], train=[1.0])
    with pytest.raises(ValueError, match="trial 0 goes on to step 2 but its record has 1"):
        replay_curves([short], by_rank())


def test_a_record_without_an_evaluation_is_refused() -> None:
    full = curve(0, validation=[1.0, 1.0])
    holed = RecordedCurve(candidate=full.candidate, train_losses=full.train_losses, validation_losses={1: 1.0})
    with pytest.raises(ValueError, match="evaluated after step 2 but its record has no loss there"):
        replay_curves([holed], by_rank())


def test_a_curve_of_points_alone_replays_to_the_recorded_smoothing() -> None:
    """The losses between the points are made up, but they lead the smoothed loss through every point."""
    candidate = plan_candidate(0, planned_steps=40, warmup_fraction=0.1, settings=EvaluationSettings())
    points = [(step, 5.0 - step / 10 + (step % 3) / 7, 5.0) for step in candidate.evaluation_steps]
    found = RecordedCurve.from_points(candidate, points, batch_size=2)
    trajectory = Trajectory()
    smoothed = []
    for step, loss in enumerate(found.train_losses, start=1):
        trajectory.add_step(loss)
        if step in found.validation_losses:
            smoothed.append((step, trajectory.ema))
    assert [step for step, _ in smoothed] == [step for step, _, _ in points]
    assert [ema for _, ema in smoothed] == pytest.approx([ema for _, ema, _ in points], rel=1e-12)
    assert replay_curves([found], by_rank(rule="none")).samples_full == 80


def test_a_point_that_is_not_finite_ends_the_trial_at_it() -> None:
    candidate = plan_candidate(0, planned_steps=40, warmup_fraction=0.1, settings=EvaluationSettings())
    steps = candidate.evaluation_steps
    points = [(step, 2.0 if step < steps[5] else math.nan, 2.0) for step in steps]
    report = replay_curves([RecordedCurve.from_points(candidate, points)], by_rank(rule="none"))
    assert report.steps[0] == steps[5]
    assert report.decisions[-1].reason == Reason("non-finite")
