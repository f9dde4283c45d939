"""Overfitting: the validation loss stays far above the training loss (ALTO Algorithm 1, pattern 2)."""

from __future__ import annotations

from collections import Counter

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["OVERFITTING", "OverfittingRule"]

OVERFITTING = Reason(
    "overfitting",
    sentence="The validation loss stayed far above the smoothed training loss, without a new best.",
    colours=("#b87a00", "#e69f00"),
    shape="diamond",
)


# The paper divides by the EMA itself, which may be 0, or negative for other losses than these.
_SMALLEST_TRAIN_LOSS = 1e-8


class OverfittingRule(Rule):
    """Stops a trial at ``patience`` consecutive evaluations with a gap above ``threshold``.

    gap = (validation - ema) / max(|ema|, 1e-8). A smaller gap sets the count to 0, and so does, with
    ``ignores_new_best``, an evaluation that is the trial's best so far.
    """

    name = "overfitting"

    def __init__(self, *, patience: int, threshold: float, ignores_new_best: bool = False) -> None:
        self._patience = patience
        self._threshold = threshold
        self._ignores_new_best = ignores_new_best
        self._counts: Counter[int] = Counter()

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        if isinstance(observation.event, StepDone):
            return ()
        trial_id = observation.trial_id
        trajectory = observation.trajectory
        train, validation = trajectory.train[-1].value, trajectory.validation[-1].value
        gap = (validation - train) / max(abs(train), _SMALLEST_TRAIN_LOSS)
        best = trajectory.best_validation
        is_new_best = best is not None and best.step == trajectory.last_evaluated_step
        # Over several epochs the training loss falls ahead of a validation loss that still improves. ALTO's rule then
        # stops the best trials of a grid: 1.0 to 64 % above the grid's best loss (docs/decisions/0011).
        counts = gap > self._threshold and not (self._ignores_new_best and is_new_best)
        self._counts[trial_id] = self._counts[trial_id] + 1 if counts else 0
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
        if best is not None:
            numbers |= {"best_validation_loss": best.value, "best_validation_step": best.step}
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=OVERFITTING, numbers=numbers),)
