"""Patience, against decisions worked out by hand."""

from __future__ import annotations

import pytest

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.study import Study
from tests.tuning.loss_curves import curve, ending, run_alone


def stop_of(study: Study) -> Decision:
    (stop,) = [d for d in study.decisions if d.kind is DecisionKind.STOP]
    return stop


@pytest.mark.parametrize(
    ("losses", "step", "reason"),
    [
        ([2.0, 1.0, 1.0, 1.5, 1.25, 9.0], 5, "patience"),  # an equal loss is no improvement: counts 1, 2, 3
        ([2.0, 1.0, 1.5, 1.5, 0.5, 1.0, 1.0, 1.0, 9.0], 8, "patience"),  # reset at 5
        ([2.0, 1.0, 1.5, 1.5, 0.5, 1.0, 1.0], 7, "completed"),
    ],
)
def test_three_without_improvement(losses: list[float], step: int, reason: str) -> None:
    study = run_alone(curve(0, validation=losses), EarlyExitSettings(rule="patience"))
    assert ending(study)[:2] == (step, reason)


def test_improvements_must_reach_the_minimum_but_may_add_up() -> None:
    # against the best 2.0: 1.8 and 1.6 are no improvement by 0.5, 1.4 is
    settings = EarlyExitSettings(rule="patience", patience=3, min_improvement=0.5)
    study = run_alone(curve(0, validation=[2.0, 1.8, 1.6, 1.4, 1.3, 1.2, 1.1, 1.0]), settings)
    assert ending(study) == (7, "patience", "patience")
    assert stop_of(study).numbers["best_validation_loss"] == 1.4


def test_it_brings_no_other_rule() -> None:
    settings = EarlyExitSettings(rule="patience", patience=9, ema_weight=1.0)
    study = run_alone(curve(0, validation=[1.0, 2.0, 3.0, 4.0]), settings)
    assert ending(study) == (4, "completed", "study")
