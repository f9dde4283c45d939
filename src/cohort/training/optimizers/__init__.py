"""Optimizers by name. A new one is a file in ``kinds``.

In another package, it is an entry point of ``cohort.optimizers``. Its declaration is read without torch; what it
declares is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.training.optimizers.by_trial import DEFAULT_OPTIMIZER, OPTIMIZERS, optimizer_for

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS", "optimizer_for"]


def __getattr__(name: str) -> object:
    # imported when first used: declarations need no torch
    if name in __all__:
        return getattr(importlib.import_module("cohort.training.optimizers.by_trial"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
