"""Random draws: each parameter by its own distribution, whatever the results."""

from __future__ import annotations

from cohort.tuning.samplers.optuna_sampler import OptunaSampler
from cohort.tuning.samplers.sampler import SamplerKind

__all__ = ["SAMPLER"]

SAMPLER = SamplerKind(
    name="random",
    summary="Random draws.",
    build=lambda space, budget: OptunaSampler(
        space, name="random", budget=budget, make=lambda optuna, seed: optuna.samplers.RandomSampler(seed=seed)
    ),
)
