"""Overfitting: the validation loss stays far above the training loss (ALTO Algorithm 1, pattern 2)."""

from __future__ import annotations

from collections import Counter

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["OverfittingRule"]

_SMALLEST_TRAIN_LOSS = 1e-8


class OverfittingRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations with a gap above ``threshold``.

    gap = (validation - ema) / max(|ema|, 1e-8). A smaller gap sets the count to 0. We differ from the paper in the
    denominator only: it divides by the EMA itself, which may be 0 or, for other losses than these, negative.
    """

    name = "overfitting"

    def __init__(self, *, patience: int, threshold: float) -> None:
        self._patience = patience
        self._threshold = threshold
        self._counts: Counter[int] = Counter()

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """Count at evaluations; return STOP at the ``patience``-th in a row."""
        if isinstance(observation.event, StepDone):
            return ()
        trial_id = observation.trial_id
        trajectory = observation.trajectory
        train, validation = trajectory.train[-1].value, trajectory.validation[-1].value
        gap = (validation - train) / max(abs(train), _SMALLEST_TRAIN_LOSS)
        self._counts[trial_id] = self._counts[trial_id] + 1 if gap > self._threshold else 0
        if self._counts[trial_id] < self._patience:
            return ()
        numbers = {
            "validation_loss": validation,
            "train_ema": train,
            "gap": gap,
            "gap_threshold": self._threshold,
            "count": self._counts[trial_id],
            "patience": self._patience,
        }
        best = trajectory.best_validation
        if best is not None:
            numbers |= {"best_validation_loss": best.value, "best_validation_step": best.step}
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=Reason.OVERFITTING, numbers=numbers),)
