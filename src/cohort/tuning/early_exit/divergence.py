"""Divergence: training and validation loss both rise, evaluation after evaluation (ALTO Algorithm 1, pattern 1)."""

from __future__ import annotations

from collections import Counter

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["DIVERGING", "DivergenceRule"]

DIVERGING = Reason(
    "diverging",
    sentence="Training and validation loss both rose at several evaluations in a row.",
    colours=("#d55e00", "#f08040"),
    shape="up",
)


class DivergenceRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations with both slopes at or above ``threshold``.

    Slopes are least squares over the last ``window`` points; with fewer points nothing is counted. Either slope below
    the threshold sets the count to 0, so a passing spike stops nothing.
    """

    name = "divergence"

    def __init__(self, *, window: int, patience: int, threshold: float) -> None:
        self._window = window
        self._patience = patience
        self._threshold = threshold
        self._counts: Counter[int] = Counter()

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        if isinstance(observation.event, StepDone):
            return ()
        slopes = observation.trajectory.slopes(self._window)
        if slopes is None:
            return ()
        trial_id = observation.trial_id
        # Both, as in ALTO's pattern 1: a validation loss that rises alone is overfitting, which has its own rule.
        rising = slopes[0] >= self._threshold and slopes[1] >= self._threshold
        # Not summed over the run: a single spike that passes must not add up with another one later.
        self._counts[trial_id] = self._counts[trial_id] + 1 if rising else 0
        if self._counts[trial_id] < self._patience:
            return ()
        numbers = {
            "train_slope": slopes[0],
            "validation_slope": slopes[1],
            "slope_threshold": self._threshold,
            "window": self._window,
            "count": self._counts[trial_id],
            "patience": self._patience,
        }
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=DIVERGING, numbers=numbers),)
