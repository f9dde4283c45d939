"""Optimizers by name. A new one is its file, its line here and its test."""

from __future__ import annotations

from cohort.training.optimizers.adamw import AdamW
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS"]

OPTIMIZERS: dict[str, Optimizer] = {"adamw": AdamW()}
DEFAULT_OPTIMIZER = OPTIMIZERS["adamw"]
