"""Optimizers by name, which is their file's. A new one is a file with its ``OPTIMIZER``."""

from __future__ import annotations

from collections.abc import Collection

from cohort.core.discovery import offered_in
from cohort.training.optimizers.by_trial import ByTrial
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS", "optimizer_for"]

OPTIMIZERS: dict[str, Optimizer] = offered_in(__name__, "OPTIMIZER")
_SHARED = {moment.name for moment in OPTIMIZERS["adamw"].moments}
# the moments of these are among AdamW's, so a bank, a state and a checkpoint are the same for all of them
_DEFAULT = {
    name: optimizer
    for name, optimizer in OPTIMIZERS.items()
    if {moment.name for moment in optimizer.moments} <= _SHARED
}
DEFAULT_OPTIMIZER: Optimizer = ByTrial(_DEFAULT)


def optimizer_for(names: Collection[str]) -> Optimizer:
    """Return what steps trials with the optimizers ``names``; a bank keeps no other moments than theirs."""
    if set(names) <= _DEFAULT.keys():
        return DEFAULT_OPTIMIZER
    return ByTrial({name: OPTIMIZERS[name] for name in sorted(names)})
