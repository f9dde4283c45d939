"""What the curves of a run are drawn with: the weight of their running average, and the unit of their loss."""

from __future__ import annotations

from cohort.runs.facts import RunFacts
from cohort.training.objectives.declaration import (
    DEFAULT_OBJECTIVE_NAME,
    OBJECTIVE_DECLARATIONS,
    ObjectiveDeclaration,
)
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["ema_weight", "loss_unit", "objective_of"]


def ema_weight(facts: RunFacts) -> float:
    """Return the weight that the run's exit rules average losses with."""
    early_exit = (facts.task.document or {}).get("early_exit")
    weight = early_exit.get("ema_weight") if isinstance(early_exit, dict) else None
    return float(weight) if isinstance(weight, int | float) else EarlyExitSettings().common.ema_weight


def objective_of(facts: RunFacts) -> ObjectiveDeclaration | None:
    """Return what the task's objective declares; None where the package that offers it is gone."""
    objective = (facts.task.document or {}).get("objective")
    kind = objective.get("type") if isinstance(objective, dict) else objective
    return OBJECTIVE_DECLARATIONS.known(kind or DEFAULT_OBJECTIVE_NAME)


def loss_unit(facts: RunFacts) -> str:
    """Return the unit of a task's loss; empty for an objective over pairs or answers, whose loss is a bare number."""
    declared = objective_of(facts)
    return "" if declared is None else declared.loss_unit
