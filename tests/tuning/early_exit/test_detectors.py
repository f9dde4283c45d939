"""The rules that look at one trial, against decisions worked out by hand."""

from __future__ import annotations

import math

import pytest

from cohort.core.events import Evaluated
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.rules import EXIT_RULES
from cohort.tuning.study import Study
from cohort.tuning.trial_phase import TrialPhase
from tests.tuning.loss_curves import curve, ending, run_alone, step_done

# The EMA with weight 1 is the loss itself, and without selection only the detectors act.
PATTERNS = EarlyExitSettings(
    ema_weight=1.0,
    select_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)
FALLING = [3.0 - 0.1 * index for index in range(8)]


def stop_of(study: Study) -> Decision:
    (stop,) = [d for d in study.decisions if d.kind is DecisionKind.STOP]
    return stop


class TestDivergence:
    def test_two_rising_evaluations_stop(self) -> None:
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
    def test_either_slope_below_the_threshold_resets_the_count(self, resetting: str) -> None:
        rising = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
        dented = [1.0, 1.25, 1.25, 1.5, 1.75, 2.0]
        series = {"validation": rising, "train": rising} | {resetting: dented}
        # counts at evaluations 2, 3, 4, 5: 1, 0, 1, 2; the gap must not act, so it is allowed to be anything
        settings = PATTERNS.with_keys(gap_threshold=1e9)
        study = run_alone(curve(0, validation=series["validation"], train=series["train"]), settings)
        assert ending(study) == (5, "diverging", "divergence")

    def test_a_rising_validation_loss_alone_is_no_divergence(self) -> None:
        settings = PATTERNS.with_keys(gap_threshold=1e9)
        study = run_alone(curve(0, validation=[1.0, 1.5, 2.0, 2.5], train=[1.0, 0.9, 0.8, 0.7]), settings)
        assert ending(study) == (4, "completed", "study")

    @pytest.mark.parametrize(("threshold", "step"), [(0.25, 3), (0.2500001, 4)])
    def test_a_slope_equal_to_the_threshold_counts(self, threshold: float, step: int) -> None:
        settings = PATTERNS.with_keys(slope_threshold=threshold)
        assert ending(run_alone(curve(0, validation=[1.0, 1.25, 1.5, 1.75]), settings))[0] == step

    def test_a_wider_window_fits_a_line_and_waits_for_its_points(self) -> None:
        # least squares over 3 points is (last - first) / 2: 0.25 at evaluation 3, 0.0 at 4, 0.5 at 5, 0.5 at 6
        losses = [1.0, 1.75, 1.5, 1.75, 2.5, 2.75, 9.0]
        settings = PATTERNS.with_keys(window=3, slope_threshold=0.1)
        study = run_alone(curve(0, validation=losses), settings)
        assert ending(study) == (6, "diverging", "divergence")
        assert stop_of(study).numbers["train_slope"] == 0.5

    def test_patience_one_stops_at_the_first(self) -> None:
        settings = PATTERNS.with_keys(divergence_patience=1)
        assert ending(run_alone(curve(0, validation=[1.0, 1.25, 1.5]), settings)) == (2, "diverging", "divergence")

    def test_it_acts_within_warmup(self) -> None:
        study = run_alone(
            curve(0, validation=[1.0, 1.25, 1.5, 1.75], warmup_steps=3), EarlyExitSettings(ema_weight=1.0)
        )
        assert ending(study) == (3, "diverging", "divergence")
        assert not any(d.kind is DecisionKind.PARK for d in study.decisions), "detectors come before parking"


class TestOverfitting:
    def test_two_large_gaps_stop_and_the_best_checkpoint_stays(self) -> None:
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

    def test_a_small_gap_resets_the_count(self) -> None:
        # gaps 1, 0, 1, 1: counts 1, 0, 1, 2
        study = run_alone(curve(0, validation=[2.0, 1.0, 2.0, 1.0, 1.0], train=[1.0, 1.0, 1.0, 0.5, 0.5]), PATTERNS)
        assert ending(study) == (4, "overfitting", "overfitting")

    def test_a_gap_equal_to_the_threshold_does_not_count(self) -> None:
        settings = PATTERNS.with_keys(gap_threshold=0.5)
        study = run_alone(curve(0, validation=[1.5] * 4, train=[1.0] * 4), settings)
        assert ending(study) == (4, "completed", "study")

    def test_a_training_loss_of_zero_is_no_division_by_zero(self) -> None:
        study = run_alone(curve(0, validation=[1.0, 1.0, 1.0], train=[0.0, 0.0, 0.0]), PATTERNS)
        assert ending(study) == (2, "overfitting", "overfitting")
        assert stop_of(study).numbers["gap"] == 1.0 / 1e-8

    def test_the_train_point_is_the_moving_average(self) -> None:
        # ema: 2, 0.5 * 1 + 0.5 * 2 = 1.5, 0.5 * 0.5 + 0.5 * 1.5 = 1.0; gaps of the raw losses would be 0, 0.5, 2
        settings = PATTERNS.with_keys(ema_weight=0.5, overfitting_patience=1, gap_threshold=0.4)
        study = run_alone(curve(0, validation=[2.0, 1.5, 1.5, 1.5], train=[2.0, 1.0, 0.5, 0.5]), settings)
        assert ending(study) == (3, "overfitting", "overfitting")
        assert (stop_of(study).numbers["train_ema"], stop_of(study).numbers["gap"]) == (1.0, 0.5)

    def test_a_new_best_does_not_count_where_it_is_to_be_ignored(self) -> None:
        # the gap is large from evaluation 2 on; new bests at 2, 3 and 6, so counts are 0, 0, 0, 1, 2, 0, 1, 2, 3
        losses = [2.0, 1.8, 1.6, 1.7, 1.6, 1.5, 1.5, 1.6, 1.7, 1.4]
        train = [2.0, *(1 - place / 100 for place in range(9))]
        assert ending(run_alone(curve(0, validation=losses, train=train), PATTERNS))[0] == 3
        settings = PATTERNS.with_keys(overfitting_patience=3, overfitting_ignores_new_best=True)
        study = run_alone(curve(0, validation=losses, train=train), settings)
        assert ending(study) == (9, "overfitting", "overfitting")
        assert stop_of(study).numbers["best_validation_step"] == 6

    def test_divergence_is_asked_first(self) -> None:
        study = run_alone(curve(0, validation=[2.0, 4.0, 6.0], train=[1.0, 2.0, 3.0], warmup_steps=3), PATTERNS)
        assert ending(study) == (2, "overfitting", "overfitting")
        slow = PATTERNS.with_keys(overfitting_patience=3)
        study = run_alone(curve(0, validation=[2.0, 4.0, 6.0], train=[1.0, 2.0, 3.0], warmup_steps=3), slow)
        assert ending(study) == (3, "diverging", "divergence")


class TestPatience:
    @pytest.mark.parametrize(
        ("losses", "step", "reason"),
        [
            ([2.0, 1.0, 1.0, 1.5, 1.25, 9.0], 5, "patience"),  # an equal loss is no improvement: counts 1, 2, 3
            ([2.0, 1.0, 1.5, 1.5, 0.5, 1.0, 1.0, 1.0, 9.0], 8, "patience"),  # reset at 5
            ([2.0, 1.0, 1.5, 1.5, 0.5, 1.0, 1.0], 7, "completed"),
        ],
    )
    def test_three_without_improvement(self, losses: list[float], step: int, reason: str) -> None:
        study = run_alone(curve(0, validation=losses), EarlyExitSettings(rule="patience"))
        assert ending(study)[:2] == (step, reason)

    def test_improvements_must_reach_the_minimum_but_may_add_up(self) -> None:
        # against the best 2.0: 1.8 and 1.6 are no improvement by 0.5, 1.4 is
        settings = EarlyExitSettings(rule="patience", patience=3, min_improvement=0.5)
        study = run_alone(curve(0, validation=[2.0, 1.8, 1.6, 1.4, 1.3, 1.2, 1.1, 1.0]), settings)
        assert ending(study) == (7, "patience", "patience")
        assert stop_of(study).numbers["best_validation_loss"] == 1.4

    def test_it_brings_no_other_rule(self) -> None:
        settings = EarlyExitSettings(rule="patience", patience=9, ema_weight=1.0)
        study = run_alone(curve(0, validation=[1.0, 2.0, 3.0, 4.0]), settings)
        assert ending(study) == (4, "completed", "study")


class TestNonFinite:
    CANDIDATE = Candidate(trial_id=0, planned_steps=4, warmup_steps=2, evaluation_steps=(2, 4))

    @pytest.mark.parametrize("rule", EXIT_RULES.names())
    @pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
    def test_a_loss_at_the_first_step_stops_at_once_under_every_rule(self, rule: str, loss: float) -> None:
        study = Study([self.CANDIDATE], EarlyExitSettings(rule=rule))
        study.start(0)
        (decision,) = study.observe(step_done(0, 1, loss))
        assert (decision.kind, decision.reason, decision.step) == (DecisionKind.STOP, "non-finite", 1)
        assert study.state(0) is TrialPhase.STOPPED
        assert study.is_finished
        assert study.result() is None

    def test_a_loss_between_evaluations_stops_and_the_best_stays(self) -> None:
        study = Study([self.CANDIDATE], EarlyExitSettings(select_fraction=1.0))
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
    def test_a_validation_loss_stops_and_is_never_the_best(self, loss: float) -> None:
        study = Study([self.CANDIDATE], EarlyExitSettings())
        study.start(0)
        study.observe(step_done(0, 1, 2.0))
        study.observe(step_done(0, 2, 2.0))
        (decision,) = study.observe(Evaluated(trial_id=0, step=2, validation_loss=loss))
        assert (decision.kind, decision.reason) == (DecisionKind.STOP, "non-finite")
        assert study.trajectory(0).best_validation is None
        assert study.result() is None

    def test_a_gradient_norm_stops(self) -> None:
        study = Study([self.CANDIDATE], EarlyExitSettings())
        study.start(0)
        (decision,) = study.observe(step_done(0, 1, 2.0, grad_norm=math.inf))
        assert decision.reason == "non-finite"
        assert decision.numbers["grad_norm"] == math.inf

    def test_it_comes_before_completion_at_the_last_step(self) -> None:
        study = run_alone(curve(0, validation=[2.0, 1.0, math.nan], train=[2.0, 1.0, 1.0]), PATTERNS)
        assert ending(study) == (3, "non-finite", "non_finite")


def test_none_trains_everything_to_the_end() -> None:
    study = run_alone(curve(0, validation=[1.0, 2.0, 3.0, 4.0, 5.0]), EarlyExitSettings(rule="none"))
    assert ending(study) == (5, "completed", "study")


def test_a_healthy_trial_is_left_alone_by_the_detectors() -> None:
    study = run_alone(curve(0, validation=FALLING), PATTERNS)
    assert ending(study) == (8, "completed", "study")
