"""Non-finite: a trial whose loss is NaN or Inf cannot recover and ends at once, also between evaluations."""

from __future__ import annotations

import math

from cohort.core.events import StepDone
from cohort.tuning.decisions import NON_FINITE, DecisionKind
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["NonFiniteRule"]


class NonFiniteRule(Rule):
    """Stops a trial whose training loss, gradient norm or validation loss is NaN or Inf."""

    name = "non_finite"
    is_final = True

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        event = observation.event
        # The gradient norm too: the update made from it leaves no finite weight, one step before a loss shows it.
        if isinstance(event, StepDone):
            numbers = {"loss": event.loss, "grad_norm": event.grad_norm}
        else:
            numbers = {"validation_loss": event.validation_loss}
        if all(math.isfinite(value) for value in numbers.values()):
            return ()
        trial_id = observation.trial_id
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=NON_FINITE, numbers=numbers),)
