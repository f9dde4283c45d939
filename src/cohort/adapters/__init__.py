"""Adapters: specs, the bank of resident ones, the packed linear, PEFT files, merging."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.adapters.adapter_state import AdapterState
    from cohort.adapters.bank import AdapterBank
    from cohort.adapters.layout import AdapterLayout
    from cohort.adapters.spec import AdapterSpec

__all__ = ["AdapterBank", "AdapterLayout", "AdapterSpec", "AdapterState"]

# imported when first used: a spec needs no torch
_HOMES = {
    "AdapterBank": "cohort.adapters.bank",
    "AdapterLayout": "cohort.adapters.layout",
    "AdapterSpec": "cohort.adapters.spec",
    "AdapterState": "cohort.adapters.bank",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cohort.adapters' has no attribute {name!r}; public names: {', '.join(__all__)}")
