"""Pure decisions about GPUs: who is resident, which trials train together, which task runs where and when.

Names are imported when they are first used: admission must not need the solvers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.scheduling.packing.planner import plan_packs
    from cohort.scheduling.placement.task_planner import plan_placement

__all__ = ["plan_packs", "plan_placement"]

_HOMES = {
    "plan_packs": "cohort.scheduling.packing.planner",
    "plan_placement": "cohort.scheduling.placement.task_planner",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
