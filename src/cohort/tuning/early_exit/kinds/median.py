"""Median stopping (Golovin et al. 2017): a trial worse than the median of the others at the same share ends."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.events import StepDone
from cohort.core.setting_fields import whole
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.rule import UNDERPERFORMING, ExitRule, Observation, Rule, RuleSettings, Verdict
from cohort.tuning.early_exit.separation import Standing, chances, numbers_of_chance
from cohort.tuning.early_exit.step_floor import StepFloor

__all__ = ["EXIT_RULE", "MedianRule", "MedianSettings"]

# the median is no trial's
_NO_TRIAL = -1


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
    depend on the order of arrival. The rows have to tell the two apart; the median of an even number of trials has in
    each row the mean of the two in the middle.
    """

    name = "median"
    compares_trials = True

    def __init__(self, *, startup_trials: int, risk: float = 1.0, tolerance: float = 0.0, least_steps: int = 1) -> None:
        self._startup_trials, self._risk, self._tolerance = startup_trials, risk, tolerance
        self._floor = StepFloor(least_steps)
        self._curves: dict[int, list[tuple[Fraction, Standing]]] = {}

    def add(self, candidate: Candidate) -> None:
        self._floor.add(candidate)

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        event, candidate = observation.event, observation.candidate
        if isinstance(event, StepDone):
            return ()
        trial_id = observation.trial_id
        # Shares of training, not steps: a trial of batch size 1 has eight times the steps of one of batch size 8.
        share = Fraction(event.step, candidate.planned_steps)
        curve = self._curves.setdefault(trial_id, [])
        curve.append((share, observation.standing))
        best = min((standing for _, standing in curve), key=lambda standing: standing.order)
        others = self._of_others(trial_id, share=share)
        # The curve is kept also within warm-up: the others are compared with it later.
        if event.step < candidate.warmup_steps or share < self._floor.share or len(others) < self._startup_trials:
            return ()
        median = _median(others)
        if best.cost <= median.cost:
            return ()
        chance = chances([best], median, risk=self._risk, tolerance=self._tolerance)[trial_id]
        if chance > self._risk:
            return ()
        numbers = {
            "best_validation_loss": best.loss,
            "median": median.cost,
            "num_others": len(others),
            "startup_trials": self._startup_trials,
            "share_of_steps": float(share),
        } | numbers_of_chance(chance, risk=self._risk, tolerance=self._tolerance, num_rows=len(best.rows))
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=UNDERPERFORMING, numbers=numbers),)

    def _of_others(self, trial_id: int, *, share: Fraction) -> list[Standing]:
        """Return how every other trial stood at ``share`` that has come as far and was evaluated before it."""
        found = []
        for other, curve in self._curves.items():
            if other == trial_id or curve[-1][0] < share:
                continue
            # Their last evaluation at or before this share, for evaluations of two trials seldom fall on the same one.
            until = [standing for at, standing in curve if at <= share]
            if until:
                found.append(until[-1])
        return found


def _median(others: Sequence[Standing]) -> Standing:
    """Return the standing in the middle, or what lies between the two there."""
    ranked = sorted(others, key=lambda standing: standing.order)
    low, high = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]

    def between(ones: Sequence[float], twos: Sequence[float]) -> tuple[float, ...]:
        return tuple((a + b) / 2 for a, b in zip(ones, twos, strict=True)) if len(ones) == len(twos) else ()

    return Standing(
        trial_id=_NO_TRIAL,
        cost=statistics.median((low.cost, high.cost)),
        loss=statistics.median((low.loss, high.loss)),
        rows=between(low.rows, high.rows),
        loss_rows=between(low.loss_rows, high.loss_rows),
    )


EXIT_RULE = ExitRule(
    name="median",
    summary="A trial worse than the median of the other trials at the same share of training.",
    settings=MedianSettings,
    # warm-up comes with the candidates, whose first judged evaluation it is
    build=lambda settings, common: (
        MedianRule(
            startup_trials=settings.startup_trials,
            risk=common.risk,
            tolerance=common.tolerance,
            least_steps=common.compare_after_steps,
        ),
    ),
    # it judges at whatever evaluations there are
    milestones=lambda settings, common, floor: (floor,) if floor else (),  # noqa: ARG005
    reasons=(UNDERPERFORMING,),
)
