"""The formats of frozen weights: one file each, in ``kinds``; a new one is a file there.

In another package, it is an entry point of ``cohort.weight_formats``. Its declaration is read without torch; what it
declares is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.models.weight_formats.lookup import NF4, PLAIN, WEIGHT_FORMATS, all_formats, format_named
    from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["NF4", "PLAIN", "WEIGHT_FORMATS", "WeightFormat", "all_formats", "format_named"]


def __getattr__(name: str) -> object:
    # imported when first used: declarations need no torch
    if name in __all__:
        module = "weight_format" if name == "WeightFormat" else "lookup"
        return getattr(importlib.import_module(f"cohort.models.weight_formats.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
