"""Cohort: train a whole cohort of LoRA adapters at once on one frozen model and keep the best.

Names are imported when they are first used, so that ``import cohort`` costs next to nothing and touches no GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cohort.version import __version__

if TYPE_CHECKING:
    from cohort.core.errors import CohortError, InputError, Problem

__all__ = ["CohortError", "InputError", "Problem", "__version__"]

_HOMES = {
    "CohortError": "cohort.core.errors",
    "InputError": "cohort.core.errors",
    "Problem": "cohort.core.errors",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cohort' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
