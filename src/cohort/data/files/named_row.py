"""A row under our column names, and the values of its columns: there, text, filled in, messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cohort.data.examples import (
    Message,
)
from cohort.data.files.messages import parse_messages
from cohort.data.problems import BadRowError

__all__ = ["filled_in", "messages_in", "NamedRow", "present", "string_in"]


class NamedRow(dict[str, Any]):
    """A row under our column names, which knows what its file calls them: messages use the file's words."""

    def __init__(self, values: Mapping[str, Any], *, names: Mapping[str, str] | None = None) -> None:
        super().__init__(values)
        self.names = names or {}

    def name(self, key: str) -> str:
        """Return what the file calls a column of ours."""
        return self.names.get(key, key)


def present(values: NamedRow, key: str) -> Any:
    value = values.get(key)
    if value is None:
        name, keys = values.name(key), ", ".join(map(values.name, values)) or "(none)"
        is_null = key in values
        raise BadRowError(
            # a null counts as absent, but the message must not deny a key that is there
            found=f"{name!r}: null" if is_null else f"no {name!r} among the keys {keys}",
            allowed=f"a row with {name!r}",
            hint=f"Give {name!r} a value, or remove the row."
            if is_null
            else f"Add {name!r} to the row, or remove the row.",
        )
    return value


def messages_in(values: NamedRow, key: str) -> tuple[Message, ...]:
    return parse_messages(present(values, key), key=values.name(key))


def string_in(values: NamedRow, key: str) -> str:
    value = present(values, key)
    if not isinstance(value, str):
        # how tables write that there is none
        is_missing = isinstance(value, float) and math.isnan(value)
        raise BadRowError(
            found=f"{values.name(key)}: {value!r:.60} ({type(value).__name__})",
            allowed="a string",
            hint="Fill in the value, or remove the row."
            if is_missing
            else "Write the value as text: in JSON in quotes.",
        )
    return value


def filled_in(values: NamedRow, key: str) -> str:
    text = string_in(values, key)
    if not text.strip():
        raise BadRowError(
            found=f"an empty {values.name(key)!r}",
            allowed=f"a {values.name(key)!r} with text",
            hint="Fill it in, or remove the row.",
        )
    return text
