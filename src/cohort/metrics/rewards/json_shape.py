"""Whether a value has the shape that a JSON schema describes: the keywords that tests of answers need, no others.

Source: JSON Schema, draft 2020-12. A schema with a keyword that is not checked here is refused, not half read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["KEYWORDS", "schema_problems", "shape_problem"]

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    # 1.0 is an integer to JSON schema
    "integer": lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    ),
}
# the keyword, the type of value that it is about, and whether the value keeps it
_LIMITS: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any, Any], bool]]] = {
    "minimum": ((int, float), lambda value, limit: value >= limit),
    "maximum": ((int, float), lambda value, limit: value <= limit),
    "exclusiveMinimum": ((int, float), lambda value, limit: value > limit),
    "exclusiveMaximum": ((int, float), lambda value, limit: value < limit),
    "minLength": (str, lambda value, limit: len(value) >= limit),
    "maxLength": (str, lambda value, limit: len(value) <= limit),
    "minItems": (list, lambda value, limit: len(value) >= limit),
    "maxItems": (list, lambda value, limit: len(value) <= limit),
    "pattern": (str, lambda value, pattern: re.search(pattern, value) is not None),
}
_NOTES = ("title", "description", "$schema", "examples", "default")
KEYWORDS = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
    *_LIMITS,
    *_NOTES,
)
"""What a schema may have."""


def schema_problems(
    schema: object, where: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield what is wrong with a schema: the place in it, what was found, what is allowed."""
    if not isinstance(schema, dict):
        yield where, repr(schema)[:60], "a schema, such as {type: object}"
        return
    for key, value in schema.items():
        at = (*where, str(key))
        if key not in KEYWORDS:
            yield at, f"the keyword {key!r}", ", ".join(KEYWORDS)
        elif key == "type" and not all(name in _TYPES for name in (value if isinstance(value, list) else [value])):
            yield at, repr(value)[:60], " | ".join(_TYPES)
        elif key in ("enum", "required", "anyOf") and not isinstance(value, list):
            yield at, repr(value)[:60], "a list"
        elif key == "properties" and not isinstance(value, dict):
            yield at, repr(value)[:60], "a schema for each name"
        elif key == "pattern":
            yield from _pattern_problems(value, at)
        elif key in _LIMITS and (not isinstance(value, int | float) or isinstance(value, bool)):
            yield at, repr(value)[:60], "a number"
        elif key == "additionalProperties" and not isinstance(value, bool):
            yield at, repr(value)[:60], "true | false"
        elif key == "items":
            yield from schema_problems(value, at)
        elif key == "properties":
            for name, inner in value.items():
                yield from schema_problems(inner, (*at, str(name)))
        elif key == "anyOf":
            for place, inner in enumerate(value):
                yield from schema_problems(inner, (*at, place))


def _pattern_problems(value: object, at: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        yield at, f"{value!r:.60} ({error})", "a regular expression"


def shape_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return why a value is not what ``schema`` accepts; None where it is."""
    kinds = schema.get("type")
    if kinds is not None and not any(_TYPES[kind](value) for kind in (kinds if isinstance(kinds, list) else [kinds])):
        return f"is no {kinds}"
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        return "is not in enum"
    if "const" in schema and not _same(value, schema["const"]):
        return "is not const"
    if "anyOf" in schema and all(shape_problem(value, inner) is not None for inner in schema["anyOf"]):
        return "fits nothing of anyOf"
    for key, (kind, keeps) in _LIMITS.items():
        if key in schema and isinstance(value, kind) and not isinstance(value, bool) and not keeps(value, schema[key]):
            return f"does not keep {key}"
    if isinstance(value, dict):
        return _object_problem(value, schema)
    if isinstance(value, list) and "items" in schema:
        return next((found for item in value if (found := shape_problem(item, schema["items"])) is not None), None)
    return None


def _object_problem(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    known = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"lacks {missing[0]}"
    if not schema.get("additionalProperties", True) and (extra := [name for name in value if name not in known]):
        return f"has {extra[0]} as well"
    problems = (shape_problem(value[name], inner) for name, inner in known.items() if name in value)
    return next((found for found in problems if found is not None), None)


def _same(value: Any, other: Any) -> bool:
    # true is 1 to Python, and no number to JSON
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
