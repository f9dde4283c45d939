"""Options that several rewards read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cohort.core.setting_fields import Refusal, SettingField

__all__ = ["COLUMN", "PATTERN", "pattern_refusals"]

_PATTERN_ALLOWED = "a regular expression"


def _column_refusals(value: object) -> Iterator[Refusal]:
    if value is not None and (not isinstance(value, str) or not value):
        hint = "Write the name of a column of the rows, as their file has it."
        yield Refusal(found=repr(value), allowed="the name of a column", hint=hint)


def pattern_refusals(value: Any) -> Iterator[Refusal]:
    """Yield why a value is no regular expression; None is none and is accepted."""
    if value is None:
        return
    if not isinstance(value, str) or not value:
        yield Refusal(found=repr(value), allowed=_PATTERN_ALLOWED, hint="Write it in quotes: '\\d+'.")
        return
    try:
        re.compile(value)
    except re.error as error:
        hint = "Correct it; a bracket that is meant as it is needs a backslash."
        yield Refusal(found=f"{value!r}, which cannot be read ({error})", allowed=_PATTERN_ALLOWED, hint=hint)


COLUMN = SettingField(
    kind=str | None,
    default=None,
    allowed="the name of a column",
    description="the row's column with the expected answer; null: answer, solution or completion",
    check=_column_refusals,
)
PATTERN = SettingField(
    kind=str | None,
    default=None,
    allowed=_PATTERN_ALLOWED,
    description="finds the answer in a text: first group of the last match; null: the whole text",
    check=pattern_refusals,
)
