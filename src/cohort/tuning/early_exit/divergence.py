"""Divergence: training and validation loss both rise, evaluation after evaluation (ALTO Algorithm 1, pattern 1).

Two forms. ALTO's looks at slopes; ours compares each curve with its own lowest point and with its own noise. Which
one is the default and why: docs/decisions/0024-a-rise-above-the-noise.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict
from cohort.tuning.share_counts import exact_fraction
from cohort.tuning.trajectory import Point, curve_noise

__all__ = ["DIVERGING", "DivergenceRule", "RiseRule"]

DIVERGING = Reason(
    "diverging",
    sentence="Training and validation loss both rose at several evaluations in a row.",
    colours=("#d55e00", "#f08040"),
    shape="up",
)


class DivergenceRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations with both slopes at or above ``threshold``: ALTO's form.

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


class RiseRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations that find both losses well above their own lowest point.

    Well above: by more than ``margin`` of the lowest loss and by more than ``noise_factor`` times the curve's noise so
    far (:func:`~cohort.tuning.trajectory.curve_noise`). One evaluation that is not sets the count to 0. A trial that
    has less than ``least_saving`` of its steps left is not stopped any more.
    """

    name = "divergence"

    def __init__(self, *, patience: int, margin: float, noise_factor: float, least_saving: float) -> None:
        self._patience = patience
        self._margin = margin
        self._noise_factor = noise_factor
        self._least_saving = exact_fraction(least_saving)
        self._counts: Counter[int] = Counter()

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        if isinstance(observation.event, StepDone):
            return ()
        trial_id, trajectory = observation.trial_id, observation.trajectory
        train, validation = self._rise(trajectory.train), self._rise(trajectory.validation)
        # Both, as in ALTO: a validation loss that rises alone is overfitting, which has its own rule.
        is_above = train[0] > train[1] and validation[0] > validation[1]
        self._counts[trial_id] = self._counts[trial_id] + 1 if is_above else 0
        planned_steps = observation.candidate.planned_steps
        left = Fraction(planned_steps - observation.event.step, planned_steps)
        # ALTO's form ended the best trials of a sweep at 90 % of their steps: a stop there can lose and saves nothing.
        if self._counts[trial_id] < self._patience or left < self._least_saving:
            return ()
        numbers = {
            "train_rise": train[0],
            "train_rise_allowed": train[1],
            "validation_rise": validation[0],
            "validation_rise_allowed": validation[1],
            "count": self._counts[trial_id],
            "patience": self._patience,
            "share_of_steps_left": float(left),
        }
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=DIVERGING, numbers=numbers),)

    def _rise(self, curve: Sequence[Point]) -> tuple[float, float]:
        """Return how far the last point is above the lowest, and how far it may be without being counted, in nats."""
        values = [point.value for point in curve]
        lowest = min(values)
        # Noise of all evaluations so far: a curve that jumps has to jump higher to be called rising.
        return values[-1] - lowest, max(self._margin * abs(lowest), self._noise_factor * curve_noise(values))
