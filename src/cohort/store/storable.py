"""What both databases can hold: text without NUL and half characters, whole numbers of 64 bits, finite numbers.

PostgreSQL refuses the first, its driver the second, and JSON has no NaN. Checked here, clients get the same answer from
both databases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cohort.core.errors import InputError, Problem

__all__ = ["check_storable", "finite", "is_storable_text"]

_MOST = 2**63 - 1


def is_storable_text(text: str) -> bool:
    """Return whether both databases can hold a text, and be asked for it."""
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_storable(values: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` with every part of ``values``, of any depth, that a database cannot hold."""
    problems: list[Problem] = []
    for name, value in values.items():
        _look(value, name, problems)
    if problems:
        raise InputError(problems)


def _look(value: Any, where: str, problems: list[Problem]) -> None:
    if isinstance(value, str) and not is_storable_text(value):
        allowed = "text without NUL characters and halves of surrogate pairs"
        problems.append(Problem(where=where, found=ascii(value)[:80], allowed=allowed, hint="Remove these characters."))
    # bool is an int, and as good as one
    elif isinstance(value, int) and abs(value) > _MOST:
        allowed = f"whole numbers from {-_MOST} to {_MOST}"
        problems.append(
            Problem(
                where=where, found=f"a number of {value.bit_length()} bits", allowed=allowed, hint="Give a smaller one."
            )
        )
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(where=where, found=str(value), allowed="finite numbers", hint="Give another number."))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _look(str(key), where, problems)
            _look(item, f"{where}.{key}" if is_storable_text(str(key)) else where, problems)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _look(item, f"{where}[{number}]", problems)


def finite(value: Any) -> Any:
    """Return a value of JSON with None for numbers that are none: a loss may be NaN, and its event is still told."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
