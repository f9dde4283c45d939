"""Keys that later versions added with defaults that change what a run does, and what earlier versions did without them.

A run that began before a key existed goes on as it began, whatever the key's default is today.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cohort.core.place import KeyPath, dotted

__all__ = ["options_as_recorded", "with_added_keys"]

_AS_BEFORE: Mapping[KeyPath, object] = {
    # the winner was taken from the evaluations during training
    ("evaluation", "finalists"): 0,
    # ALTO's form was the only one
    ("early_exit", "divergence"): "slopes",
    # ranks alone decided, from the first step on and among however few trials
    ("early_exit", "risk"): 1.0,
    ("early_exit", "compare_after_steps"): 1,
    ("early_exit", "select_at_least"): 1,
    ("early_exit", "reselect_at_least"): 1,
    # there was no other
    ("numerics",): "fast",
}


def with_added_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded task with the keys that its version lacked."""
    whole = copy.deepcopy(dict(document))
    for key in _absent(document):
        section = whole
        for part in key[:-1]:
            section = section.setdefault(str(part), {})
        section[str(key[-1])] = _AS_BEFORE[key]
    return whole


def options_as_recorded(document: Mapping[str, Any]) -> list[str]:
    """Return the command-line arguments that make a recorded task do what it did in the version that began it."""
    return [f"--{dotted(key)}={_AS_BEFORE[key]}" for key in _absent(document)]


def _absent(document: Mapping[str, Any]) -> list[KeyPath]:
    return [key for key in _AS_BEFORE if not _has(document, key)]


def _has(document: Mapping[str, Any], key: KeyPath) -> bool:
    found: Any = document
    for part in key:
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return True
