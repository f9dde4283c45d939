"""Whether the solver of integer programs is installed: training works without it, plans do not."""

from __future__ import annotations

import importlib.util

__all__ = ["has_solver"]


def has_solver() -> bool:
    return importlib.util.find_spec("ortools") is not None
