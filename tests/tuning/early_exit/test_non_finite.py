"""A number that is not finite stops a trial at once, under every rule."""

from __future__ import annotations

import math

import pytest

from cohort.core.events import Evaluated
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.lookup import EXIT_RULES
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus
from tests.tuning.loss_curves import curve, ending, run_alone, step_done

# The EMA with weight 1 is the loss itself, and without selection only the detectors act.
PATTERNS = EarlyExitSettings(
    ema_weight=1.0,
    select_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)


CANDIDATE = Candidate(trial_id=0, planned_steps=4, warmup_steps=2, evaluation_steps=(2, 4))


@pytest.mark.parametrize("rule", EXIT_RULES.names())
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_at_the_first_step_stops_at_once_under_every_rule(rule: str, loss: float) -> None:
    study = Study([CANDIDATE], EarlyExitSettings(rule=rule))
    study.start(0)
    (decision,) = study.observe(step_done(0, 1, loss))
    assert (decision.kind, decision.reason, decision.step) == (DecisionKind.STOP, "non-finite", 1)
    assert study.status(0) is TrialStatus.STOPPED
    assert study.is_finished
    assert study.result() is None


def test_a_loss_between_evaluations_stops_and_the_best_stays() -> None:
    study = Study([CANDIDATE], EarlyExitSettings(select_fraction=1.0))
    study.start(0)
    study.observe(step_done(0, 1, 2.0))
    study.observe(step_done(0, 2, 2.0))
    study.observe(Evaluated(trial_id=0, step=2, validation_loss=1.5))
    (decision,) = study.observe(step_done(0, 3, math.nan))
    assert (decision.reason, decision.step) == ("non-finite", 3)
    best = study.result()
    assert best is not None
    assert (best.step, best.value) == (2, 1.5)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_validation_loss_stops_and_is_never_the_best(loss: float) -> None:
    study = Study([CANDIDATE], EarlyExitSettings())
    study.start(0)
    study.observe(step_done(0, 1, 2.0))
    study.observe(step_done(0, 2, 2.0))
    (decision,) = study.observe(Evaluated(trial_id=0, step=2, validation_loss=loss))
    assert (decision.kind, decision.reason) == (DecisionKind.STOP, "non-finite")
    assert study.trajectory(0).best_validation is None
    assert study.result() is None


def test_a_gradient_norm_stops() -> None:
    study = Study([CANDIDATE], EarlyExitSettings())
    study.start(0)
    (decision,) = study.observe(step_done(0, 1, 2.0, grad_norm=math.inf))
    assert decision.reason == "non-finite"
    assert decision.numbers["grad_norm"] == math.inf


def test_it_comes_before_completion_at_the_last_step() -> None:
    study = run_alone(curve(0, validation=[2.0, 1.0, math.nan], train=[2.0, 1.0, 1.0]), PATTERNS)
    assert ending(study) == (3, "non-finite", "non_finite")
