"""Numbers, hyperparameters and facts as the short text that a report shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from cohort.runs.records import JsonValue

__all__ = [
    "in_order",
    "is_number",
    "model_label",
    "number_label",
    "percent_label",
    "setting_label",
    "shortened",
    "value_label",
]

_ITEMS_SHOWN = 6


def is_number(value: JsonValue) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number; a switch is none, although bool is an int."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def in_order(values: Iterable[JsonValue]) -> tuple[dict[str, JsonValue], bool]:
    """Return the distinct values by their JSON, sorted (numbers by size), and whether all are numbers."""
    distinct = {json.dumps(value): value for value in values}
    numeric = all(map(is_number, distinct.values()))
    keys = sorted(distinct, key=lambda key: (float(str(distinct[key])) if numeric else 0.0, key))
    return {key: distinct[key] for key in keys}, numeric


def number_label(value: float, *, digits: int = 3) -> str:
    """Return ``value`` in some significant digits, small ones as people write rates: ``2e-4``."""
    label = f"{value:.{digits - 1}e}" if 0 < abs(value) < 1e-3 else f"{value:.{digits}g}"
    if "e" in label:
        mantissa, exponent = label.split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return label


def model_label(name: str) -> str:
    """Return a base model's name: a hub id as it is, of a local folder what tells it from others, without its path."""
    path = Path(name)
    if not path.is_absolute():
        return name
    # the hub's cache: models--ORGANISATION--NAME/snapshots/HASH
    if cached := next((part for part in path.parts if part.startswith("models--")), None):
        return cached.removeprefix("models--").replace("--", "/")
    # the last folder alone may be `hf` or `final`
    return "/".join(path.parts[1:][-2:])


def setting_label(value: JsonValue) -> str:
    """Return a hyperparameter's value as a tick of an axis."""
    if is_number(value):
        return number_label(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def shortened(label: str, *, most: int) -> str:
    """Return ``label`` in at most ``most`` characters, its middle left out: its beginning and its end tell most."""
    if len(label) <= most:
        return label
    kept = max(most - 1, 2)
    return f"{label[: kept - kept // 2]}…{label[-(kept // 2) :]}"


def value_label(value: JsonValue, *, digits: int = 3) -> str:
    """Return a hyperparameter or fact as text of a table."""
    if isinstance(value, bool):
        # as task files, charts and the terminal have it
        return "true" if value else "false"
    if isinstance(value, float):
        return number_label(value, digits=digits)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_label(inner)}" for name, inner in value.items())
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        # the names of all adapted linears would fill a page; run.db has them
        shown = [str(item) for item in value[:_ITEMS_SHOWN]]
        return ", ".join(shown) + (f" and {len(value) - len(shown)} more" if len(value) > len(shown) else "")
    return value if isinstance(value, str) else json.dumps(value)


def percent_label(share: float | None) -> str:
    """Return ``12.5 %``; a dash for a share that is not known."""
    return "–" if share is None else f"{100 * share:.1f} %"
