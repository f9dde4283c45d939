"""What a reward metric is compared with where the base model is the reference of the objective itself.

The rewards of DPO and KTO are log-ratios to the reference. The base model's own are all zero, so its reward accuracy
and margin are 0 by definition and every adapter is better. What says something is chance: an accuracy of 0.5, a margin
of 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from cohort.metrics import REWARD_ACCURACY, REWARD_MARGIN
from cohort.runs.facts import RunFacts
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS

__all__ = ["chance_of"]

_CHANCE: Mapping[str, float] = {REWARD_ACCURACY: 0.5, REWARD_MARGIN: 0.0}


def chance_of(facts: RunFacts, *, metric: str) -> float | None:
    """Return what chance gives where the base model's value of ``metric`` says nothing; None where it does."""
    # with a reference model, rewards are log-ratios to it; a run may be older than what is installed now
    objective = OBJECTIVE_DECLARATIONS.known(facts.task.objective)
    compares = objective is not None and objective.needs_reference
    is_reference = compares and facts.inputs.reference_adapter_hash is None
    return _CHANCE.get(metric) if is_reference else None
