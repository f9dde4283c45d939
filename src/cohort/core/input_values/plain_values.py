"""Values of other libraries as plain Python: numpy's numbers and arrays, paths and ranges in a task given in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cohort.core.errors import InputError, Problem

__all__ = ["plain_value"]

_DEEPEST = 100


def plain_value(value: Any) -> Any:
    """Return ``value`` as numbers, text, lists and dicts, as a task file would have it; anything else as it is.

    A numpy number keeps its value: ``float32(0.1)`` is 0.10000000149011612.

    Raises:
        InputError: lists or dicts contain themselves, or are nested more than 100 deep.
    """
    return _plain(value, depth=0)


def _plain(value: Any, *, depth: int) -> Any:
    if depth > _DEEPEST:
        found = "a list or dict that contains itself, or is nested very deep"
        allowed = f"lists and dicts up to {_DEEPEST} deep"
        raise InputError(Problem(where="a value", found=found, allowed=allowed, hint="Write it without nesting."))
    # by module and not by isinstance: this layer does not import numpy
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), depth=depth)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {_plain(key, depth=depth): _plain(entry, depth=depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(entry, depth=depth + 1) for entry in value]
    return value
