"""Patience: a trial whose validation loss has not improved for some evaluations ends (Prechelt, Early stopping)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cohort.core.events import StepDone
from cohort.core.setting_fields import number, whole
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import ExitRule, Observation, Rule, RuleSettings, Verdict

__all__ = ["EXIT_RULE", "PatienceRule", "PatienceSettings"]

OUT_OF_PATIENCE = Reason(
    "patience",
    label="out of patience",
    sentence="The validation loss did not improve for several evaluations.",
    colours=("#2f8fc4", "#8fd0f5"),
    shape="square",
)


@dataclass(frozen=True, kw_only=True)
class PatienceSettings(RuleSettings):
    """When a trial's own validation loss has stopped falling.

    Attributes:
        patience: Evaluations without improvement that end a trial.
        min_improvement: Nats by which the loss must fall below the best to count as an improvement.
    """

    patience: int = whole(3, "evaluations without improvement that end a trial")
    min_improvement: float = number(0.0, "nats that count as an improvement")


class PatienceRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations that do not improve on the best before them.

    An improvement is a loss below ``best - min_improvement``; it sets the count to 0 and becomes the best.
    """

    name = "patience"

    def __init__(self, *, patience: int, min_improvement: float) -> None:
        self._patience = patience
        self._min_improvement = min_improvement
        self._best: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        if isinstance(observation.event, StepDone):
            return ()
        trial_id = observation.trial_id
        loss = observation.event.validation_loss
        best = self._best.get(trial_id, math.inf)
        # Compared with the best that counted, so that many small improvements add up to one; a slow creep below the
        # minimum does not count for ever (as in transformers and Keras).
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
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=OUT_OF_PATIENCE, numbers=numbers),)


EXIT_RULE = ExitRule(
    name="patience",
    summary="A trial without a better validation loss for some evaluations; each is judged alone.",
    settings=PatienceSettings,
    comparison_keys=(),
    build=lambda settings, common: (  # noqa: ARG005 - this rule knows no warm-up
        PatienceRule(patience=settings.patience, min_improvement=settings.min_improvement),
    ),
    reasons=(OUT_OF_PATIENCE,),
)
