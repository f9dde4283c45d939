"""Overfitting, against decisions worked out by hand."""

from __future__ import annotations

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.study import Study
from tests.tuning.loss_curves import curve, ending, run_alone

# The EMA with weight 1 is the loss itself, and without selection only the detectors act.
PATTERNS = EarlyExitSettings(
    ema_weight=1.0,
    select_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)


def stop_of(study: Study) -> Decision:
    (stop,) = [d for d in study.decisions if d.kind is DecisionKind.STOP]
    return stop


def test_two_large_gaps_stop_and_the_best_checkpoint_stays() -> None:
    # gaps: 0, 0.25, 1.0, 2.0 against 0.5; count 1 at evaluation 3, 2 at 4
    study = run_alone(
        curve(0, validation=[1.0, 0.625, 0.75, 0.75, 0.7], train=[1.0, 0.5, 0.375, 0.25, 0.2]),
        PATTERNS.with_keys(gap_threshold=0.5),
    )
    assert ending(study) == (4, "overfitting", "overfitting")
    numbers = stop_of(study).numbers
    assert (numbers["gap"], numbers["count"], numbers["train_ema"]) == (2.0, 2, 0.25)
    assert (numbers["best_validation_step"], numbers["best_validation_loss"]) == (2, 0.625)
    best = study.result()
    assert best is not None
    assert (best.step, best.value) == (2, 0.625)


def test_a_small_gap_resets_the_count() -> None:
    # gaps 1, 0, 1, 1: counts 1, 0, 1, 2
    study = run_alone(curve(0, validation=[2.0, 1.0, 2.0, 1.0, 1.0], train=[1.0, 1.0, 1.0, 0.5, 0.5]), PATTERNS)
    assert ending(study) == (4, "overfitting", "overfitting")


def test_a_gap_equal_to_the_threshold_does_not_count() -> None:
    settings = PATTERNS.with_keys(gap_threshold=0.5)
    study = run_alone(curve(0, validation=[1.5] * 4, train=[1.0] * 4), settings)
    assert ending(study) == (4, "completed", "study")


def test_a_training_loss_of_zero_is_no_division_by_zero() -> None:
    study = run_alone(curve(0, validation=[1.0, 1.0, 1.0], train=[0.0, 0.0, 0.0]), PATTERNS)
    assert ending(study) == (2, "overfitting", "overfitting")
    assert stop_of(study).numbers["gap"] == 1.0 / 1e-8


def test_the_train_point_is_the_moving_average() -> None:
    # ema: 2, 0.5 * 1 + 0.5 * 2 = 1.5, 0.5 * 0.5 + 0.5 * 1.5 = 1.0; gaps of the raw losses would be 0, 0.5, 2
    settings = PATTERNS.with_keys(ema_weight=0.5, overfitting_patience=1, gap_threshold=0.4)
    study = run_alone(curve(0, validation=[2.0, 1.5, 1.5, 1.5], train=[2.0, 1.0, 0.5, 0.5]), settings)
    assert ending(study) == (3, "overfitting", "overfitting")
    assert (stop_of(study).numbers["train_ema"], stop_of(study).numbers["gap"]) == (1.0, 0.5)


def test_a_new_best_does_not_count_where_it_is_to_be_ignored() -> None:
    # the gap is large from evaluation 2 on; new bests at 2, 3 and 6, so counts are 0, 0, 0, 1, 2, 0, 1, 2, 3
    losses = [2.0, 1.8, 1.6, 1.7, 1.6, 1.5, 1.5, 1.6, 1.7, 1.4]
    train = [2.0, *(1 - place / 100 for place in range(9))]
    assert ending(run_alone(curve(0, validation=losses, train=train), PATTERNS))[0] == 3
    settings = PATTERNS.with_keys(overfitting_patience=3, overfitting_ignores_new_best=True)
    study = run_alone(curve(0, validation=losses, train=train), settings)
    assert ending(study) == (9, "overfitting", "overfitting")
    assert stop_of(study).numbers["best_validation_step"] == 6


def test_divergence_is_asked_first() -> None:
    study = run_alone(curve(0, validation=[2.0, 4.0, 6.0], train=[1.0, 2.0, 3.0], warmup_steps=3), PATTERNS)
    assert ending(study) == (2, "overfitting", "overfitting")
    slow = PATTERNS.with_keys(overfitting_patience=3, divergence="slopes")
    study = run_alone(curve(0, validation=[2.0, 4.0, 6.0], train=[1.0, 2.0, 3.0], warmup_steps=3), slow)
    assert ending(study) == (3, "diverging", "divergence")
