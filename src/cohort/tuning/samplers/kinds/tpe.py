"""TPE (Bergstra et al. 2011): draws where good results are dense and bad ones are not."""

from __future__ import annotations

import warnings
from typing import Any

from cohort.tuning.samplers.optuna_sampler import OptunaSampler
from cohort.tuning.samplers.sampler import SamplerKind

__all__ = ["SAMPLER"]


def _make(optuna: Any, seed: int) -> Any:
    with warnings.catch_warnings():
        # The constant liar, which keeps a wave of proposals apart, was marked experimental before Optuna 5.
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


SAMPLER = SamplerKind(
    name="tpe",
    summary="Random draws at first, then draws near the best results so far.",
    build=lambda space, budget: OptunaSampler(space, name="tpe", budget=budget, make=_make),
    learns=True,
)
