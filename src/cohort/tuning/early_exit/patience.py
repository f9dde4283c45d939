"""Patience: a trial whose validation loss has not improved for some evaluations ends (Prechelt, Early stopping)."""

from __future__ import annotations

import math

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["PatienceRule"]


class PatienceRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations that do not improve on the best before them.

    An improvement is a loss below ``best - min_improvement``; it sets the count to 0 and becomes the best. A loss that
    is lower by less changes neither, so that slow creeping does not count for ever (as in transformers and Keras).
    """

    name = "patience"

    def __init__(self, *, patience: int, min_improvement: float) -> None:
        self._patience = patience
        self._min_improvement = min_improvement
        self._best: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """Count at evaluations; return STOP at the ``patience``-th in a row."""
        if isinstance(observation.event, StepDone):
            return ()
        trial_id = observation.trial_id
        loss = observation.event.validation_loss
        best = self._best.get(trial_id, math.inf)
        if loss < best - self._min_improvement:
            self._best[trial_id] = loss
            self._counts[trial_id] = 0
            return ()
        self._counts[trial_id] += 1
        if self._counts[trial_id] < self._patience:
            return ()
        numbers = {
            "validation_loss": loss,
            "best_validation_loss": best,
            "min_improvement": self._min_improvement,
            "count": self._counts[trial_id],
            "patience": self._patience,
        }
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=Reason.PATIENCE, numbers=numbers),)
