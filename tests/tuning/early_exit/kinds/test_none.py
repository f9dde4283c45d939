"""Without a rule, and with a healthy trial, training goes to the end."""

from __future__ import annotations

from cohort.tuning.early_exit import EarlyExitSettings
from tests.tuning.loss_curves import curve, ending, run_alone

# The EMA with weight 1 is the loss itself, and without selection only the detectors act.
PATTERNS = EarlyExitSettings(
    ema_weight=1.0,
    select_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)


FALLING = [3.0 - 0.1 * index for index in range(8)]


def test_none_trains_everything_to_the_end() -> None:
    study = run_alone(curve(0, validation=[1.0, 2.0, 3.0, 4.0, 5.0]), EarlyExitSettings(rule="none"))
    assert ending(study) == (5, "completed", "study")


def test_a_healthy_trial_is_left_alone_by_the_detectors() -> None:
    study = run_alone(curve(0, validation=FALLING), PATTERNS)
    assert ending(study) == (8, "completed", "study")
