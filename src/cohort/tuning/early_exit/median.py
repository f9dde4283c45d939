"""Median stopping (Golovin et al. 2017): a trial worse than the median of the others at the same share ends."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.events import StepDone
from cohort.core.setting_fields import whole
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.rule import UNDERPERFORMING, ExitRule, Observation, Rule, RuleSettings, Verdict

__all__ = ["EXIT_RULE", "MedianRule", "MedianSettings"]


@dataclass(frozen=True, kw_only=True)
class MedianSettings(RuleSettings):
    """How much must be known before the median rule judges a trial.

    Attributes:
        startup_trials: Other trials that must have reached the same step before one is judged.
    """

    startup_trials: int = whole(5, "other trials that must have come as far first")


class MedianRule(Rule):
    """Stops a trial whose best loss so far is above the median loss of the others at the same share of training.

    Asked at each evaluation after warm-up (its end included), once ``startup_trials`` others have come as far. The
    comparison is Optuna's (MedianPruner): own best against the others' losses at that point, which is their last
    evaluation at or before the same share of planned steps, so that trials of different batch size meet. Decisions
    depend on the order of arrival.
    """

    name = "median"
    compares_trials = True

    def __init__(self, *, startup_trials: int) -> None:
        self._startup_trials = startup_trials
        self._curves: dict[int, list[tuple[Fraction, float]]] = {}

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        event, candidate = observation.event, observation.candidate
        if isinstance(event, StepDone):
            return ()
        trial_id = observation.trial_id
        # Shares of training, not steps: a trial of batch size 1 has eight times the steps of one of batch size 8.
        share = Fraction(event.step, candidate.planned_steps)
        self._curves.setdefault(trial_id, []).append((share, event.validation_loss))
        best = observation.trajectory.best_validation
        assert best is not None, "a finite evaluation was taken in before this rule is asked"
        others = self._losses_of_others(trial_id, share=share)
        # The curve is kept also within warm-up: the others are compared with it later.
        if event.step < candidate.warmup_steps or len(others) < self._startup_trials:
            return ()
        median = statistics.median(others)
        if best.value <= median:
            return ()
        numbers = {
            "best_validation_loss": best.value,
            "median": median,
            "num_others": len(others),
            "startup_trials": self._startup_trials,
            "share_of_steps": float(share),
        }
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=UNDERPERFORMING, numbers=numbers),)

    def _losses_of_others(self, trial_id: int, *, share: Fraction) -> list[float]:
        """Return the loss at ``share`` of every other trial that has come as far and was evaluated before it."""
        losses = []
        for other, curve in self._curves.items():
            if other == trial_id or curve[-1][0] < share:
                continue
            # Their last evaluation at or before this share, for evaluations of two trials seldom fall on the same one.
            until = [loss for at, loss in curve if at <= share]
            if until:
                losses.append(until[-1])
        return losses


EXIT_RULE = ExitRule(
    name="median",
    summary="A trial worse than the median of the other trials at the same share of training.",
    settings=MedianSettings,
    # warm-up comes with the candidates, whose first judged evaluation it is
    build=lambda settings, common: (MedianRule(startup_trials=settings.startup_trials),),  # noqa: ARG005
    # it judges at whatever evaluations there are
    milestones=lambda settings, common: (),  # noqa: ARG005
    reasons=(UNDERPERFORMING,),
)
