"""JSON as browsers read it: what is no number there is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["dumped", "plain", "rounded"]


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Return ``value`` in some significant digits; None for what JSON has no number for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def plain(value: Any) -> Any:
    """Return ``value`` with None in place of every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def dumped(value: Any) -> bytes:
    """Return ``value`` as compact JSON.

    Raises:
        ValueError: it holds a NaN that :func:`plain` has not replaced (our own bug).
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # half a character, as a page may send one, becomes its escape
    return text.encode(errors="backslashreplace")
