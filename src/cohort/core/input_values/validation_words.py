"""What a value may be, in plain words, from the errors of a validator: pydantic's own sentences are for programmers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["allowed_value"]

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "an object",
    "dict_type": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "at most {}"),
    "string_too_short": ("min_length", "text of at least {} characters"),
    "string_too_long": ("max_length", "text of at most {} characters"),
    "too_short": ("min_length", "at least {} entries"),
    "too_long": ("max_length", "at most {} entries"),
    "literal_error": ("expected", "{}"),
}


def allowed_value(error: Mapping[str, Any]) -> str:
    """Return what ``error`` (one of ``ValidationError.errors()``) allows; its own sentence where there is no word."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "missing":
        return "a value"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return (
            words.format(context.get(key))
            .replace("at least 1 characters", "at least one character")
            .replace("at least 1 entries", "at least one entry")
        )
    # int_parsing, int_type and int_from_float are one mistake to a user
    for name, words in _TYPES.items():
        if kind == name or kind.startswith(f"{name}_"):
            return words
    return str(error["msg"]).removeprefix("Value error, ")
