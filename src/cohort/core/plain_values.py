"""Values of other libraries as plain Python: numpy's numbers and arrays, paths and ranges in a task given in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["plain_value"]


def plain_value(value: Any) -> Any:
    """Return ``value`` as numbers, text, lists and dicts, as a task file would have it; anything else as it is.

    A numpy number keeps its value: ``float32(0.1)`` is 0.10000000149011612.
    """
    # by module and not by isinstance: this layer does not import numpy
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return plain_value(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {plain_value(key): plain_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain_value(entry) for entry in value]
    return value
