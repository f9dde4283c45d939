"""Divergence, against decisions worked out by hand."""

from __future__ import annotations

import pytest

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.study import Study
from tests.tuning.loss_curves import curve, ending, run_alone

# The EMA with weight 1 is the loss itself, and without selection only the detectors act.
SLOPES = EarlyExitSettings(ema_weight=1.0, divergence="slopes")
PATTERNS = SLOPES.with_keys(
    select_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)


def stop_of(study: Study) -> Decision:
    (stop,) = [d for d in study.decisions if d.kind is DecisionKind.STOP]
    return stop


def test_two_rising_evaluations_stop() -> None:
    # slopes from evaluation 2 on: 0.25 each; count 1 at 2, 2 at 3
    study = run_alone(curve(0, validation=[1.0, 1.25, 1.5, 1.75]), PATTERNS)
    assert ending(study) == (3, "diverging", "divergence")
    assert dict(stop_of(study).numbers) == {
        "train_slope": 0.25,
        "validation_slope": 0.25,
        "slope_threshold": 0.001,
        "window": 2,
        "count": 2,
        "patience": 2,
    }


@pytest.mark.parametrize("resetting", ["validation", "train"])
def test_either_slope_below_the_threshold_resets_the_count(resetting: str) -> None:
    rising = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
    dented = [1.0, 1.25, 1.25, 1.5, 1.75, 2.0]
    series = {"validation": rising, "train": rising} | {resetting: dented}
    # counts at evaluations 2, 3, 4, 5: 1, 0, 1, 2; the gap must not act, so it is allowed to be anything
    settings = PATTERNS.with_keys(gap_threshold=1e9)
    study = run_alone(curve(0, validation=series["validation"], train=series["train"]), settings)
    assert ending(study) == (5, "diverging", "divergence")


def test_a_rising_validation_loss_alone_is_no_divergence() -> None:
    settings = PATTERNS.with_keys(gap_threshold=1e9)
    study = run_alone(curve(0, validation=[1.0, 1.5, 2.0, 2.5], train=[1.0, 0.9, 0.8, 0.7]), settings)
    assert ending(study) == (4, "completed", "study")


@pytest.mark.parametrize(("threshold", "step"), [(0.25, 3), (0.2500001, 4)])
def test_a_slope_equal_to_the_threshold_counts(threshold: float, step: int) -> None:
    settings = PATTERNS.with_keys(slope_threshold=threshold)
    assert ending(run_alone(curve(0, validation=[1.0, 1.25, 1.5, 1.75]), settings))[0] == step


def test_a_wider_window_fits_a_line_and_waits_for_its_points() -> None:
    # least squares over 3 points is (last - first) / 2: 0.25 at evaluation 3, 0.0 at 4, 0.5 at 5, 0.5 at 6
    losses = [1.0, 1.75, 1.5, 1.75, 2.5, 2.75, 9.0]
    settings = PATTERNS.with_keys(window=3, slope_threshold=0.1)
    study = run_alone(curve(0, validation=losses), settings)
    assert ending(study) == (6, "diverging", "divergence")
    assert stop_of(study).numbers["train_slope"] == 0.5


def test_patience_one_stops_at_the_first() -> None:
    settings = PATTERNS.with_keys(divergence_patience=1)
    assert ending(run_alone(curve(0, validation=[1.0, 1.25, 1.5]), settings)) == (2, "diverging", "divergence")


def test_it_acts_within_warmup() -> None:
    study = run_alone(curve(0, validation=[1.0, 1.25, 1.5, 1.75], warmup_steps=3), SLOPES)
    assert ending(study) == (3, "diverging", "divergence")
    assert not any(d.kind is DecisionKind.PARK for d in study.decisions), "detectors come before parking"


RISE = EarlyExitSettings(ema_weight=1.0, select_fraction=1.0, gap_threshold=1e9, rise_least_saving=0.0)
# of a trial of a sweep over 804 rows of intents that ALTO's form ended at 90 % of its steps, close to its best
LATE_WIGGLE = [2.1, 1.8, 1.5, 1.4, 1.35, 1.3, 1.25, 1.27, 1.22, 1.2, 1.19, 1.21, 1.17, 1.16, 1.165, 1.17, 1.14, 1.13]


def test_two_evaluations_well_above_the_lowest_stop() -> None:
    # the curve is smooth, so that 10 % of the lowest is what counts; above it at evaluations 5 and 6
    study = run_alone(curve(0, validation=[1.0, 1.0, 1.0, 1.0, 1.25, 1.5, 1.75, 2.0]), RISE)
    assert ending(study) == (6, "diverging", "divergence")
    assert dict(stop_of(study).numbers) == {
        "train_rise": 0.5,
        "train_rise_allowed": 0.1,
        "validation_rise": 0.5,
        "validation_rise_allowed": 0.1,
        "count": 2,
        "patience": 2,
        "share_of_steps_left": 0.25,
    }


def test_a_wiggle_close_to_the_best_stops_by_slopes_alone() -> None:
    wiggling = curve(0, validation=LATE_WIGGLE)
    assert ending(run_alone(wiggling, PATTERNS.with_keys(gap_threshold=1e9))) == (16, "diverging", "divergence")
    assert ending(run_alone(wiggling, RISE)) == (18, "completed", "study")


def test_a_curve_that_jumps_has_to_rise_higher() -> None:
    # evaluation to evaluation 0.3 up and down: noise 0.3, so that 0.4 above the lowest is nothing
    jumping = [1.0, 1.3, 1.0, 1.3, 1.0, 1.4, 1.4, 1.0]
    assert ending(run_alone(curve(0, validation=jumping), RISE)) == (8, "completed", "study")
    assert ending(run_alone(curve(0, validation=jumping), RISE.with_keys(rise_noise=0.0)))[0] == 7


@pytest.mark.parametrize("calm", ["validation", "train"])
def test_one_loss_that_rises_alone_is_no_divergence(calm: str) -> None:
    rising = [1.0, 1.0, 1.0, 1.5, 2.0, 2.5]
    series = {"validation": rising, "train": rising} | {calm: [1.0, 0.9, 0.9, 0.8, 0.8, 0.7]}
    study = run_alone(curve(0, validation=series["validation"], train=series["train"]), RISE)
    assert ending(study) == (6, "completed", "study")


def test_a_stop_has_to_save_something() -> None:
    # the second count is at evaluation 9 of 10, where a tenth of the steps is left
    losses = [1.0] * 7 + [2.0, 3.0, 4.0]
    assert ending(run_alone(curve(0, validation=losses), RISE.with_keys(rise_least_saving=0.1)))[0] == 9
    assert ending(run_alone(curve(0, validation=losses), RISE.with_keys(rise_least_saving=0.11)))[0] == 10


def test_a_dip_back_to_the_lowest_resets_the_count() -> None:
    losses = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 2.0]
    assert ending(run_alone(curve(0, validation=losses), RISE))[0] == 10
