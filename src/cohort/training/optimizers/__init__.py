"""Optimizers by name. A new one is its file, its line here and its test."""

from __future__ import annotations

from cohort.training.optimizers.adamw import AdamW
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["OPTIMIZERS", "optimizer_named"]

OPTIMIZERS: dict[str, Optimizer] = {"adamw": AdamW()}


def optimizer_named(name: str = "adamw") -> Optimizer:
    """Return the optimizer of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimizer is called {name!r}; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
