"""Optimizers by name, which is their file's. A new one is a file with its ``OPTIMIZER``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.training.optimizers.by_trial import ByTrial
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS"]

OPTIMIZERS: dict[str, Optimizer] = offered_in(__name__, "OPTIMIZER")
# the moments of all are among AdamW's, so a bank, a state and a checkpoint are the same whoever steps
DEFAULT_OPTIMIZER: Optimizer = ByTrial(OPTIMIZERS)
