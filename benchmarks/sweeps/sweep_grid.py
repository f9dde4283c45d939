"""The grid that sweeps are priced on: 60 trials, their training and when they are evaluated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.adapters.spec import AdapterSpec
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from cohort.tuning import Candidate, EvaluationSettings, plan_candidate

__all__ = ["BATCH_SIZES", "LEARNING_RATES", "RANKS", "PlannedGridTrial", "plan_grid"]

LEARNING_RATES = (1e-5, 5e-5, 2e-4, 3e-4, 5e-4)
RANKS = (16, 32, 64)
BATCH_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class PlannedGridTrial:
    """One trial of the grid; ``learning_rate`` is the grid's own, before any scaling to a model."""

    learning_rate: float
    spec: TrialSpec
    candidate: Candidate


def plan_grid(
    num_rows: int,
    *,
    epochs: int = 1,
    learning_rate_scale: float = 1.0,
    learning_rates: Sequence[float] = LEARNING_RATES,
    ranks: Sequence[int] = RANKS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    settings: EvaluationSettings | None = None,
    warmup_fraction: float = 0.05,
    schedule: Schedule = Schedule.CONSTANT,
    seed: int = 0,
) -> list[PlannedGridTrial]:
    """Return all trials, learning rate outermost, as the grid sampler lists them."""
    found = []
    combinations = itertools.product(learning_rates, ranks, batch_sizes)
    for trial_id, (learning_rate, r, batch_size) in enumerate(combinations):
        num_steps = epochs * -(-num_rows // batch_size)
        spec = TrialSpec(
            trial_id=trial_id,
            seed=seed,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=learning_rate * learning_rate_scale,
            batch_size=batch_size,
            num_steps=num_steps,
            schedule=schedule,
        )
        candidate = plan_candidate(
            trial_id,
            planned_steps=num_steps,
            warmup_fraction=warmup_fraction,
            settings=settings or EvaluationSettings(),
        )
        found.append(PlannedGridTrial(learning_rate=learning_rate, spec=spec, candidate=candidate))
    return found
