"""Fields of settings dataclasses: default, bounds and description of each in one place.

A dataclass checks itself on creation with :func:`check_settings`. The task file's sections, their JSON schema and the
docs are made from the same fields, so that a bound or a description is written once.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.nearest_value import nearest_word
from cohort.core.source_location import KeyPath, Place

__all__ = [
    "MOST_COUNT",
    "MOST_NUMBER",
    "Refusal",
    "SettingField",
    "check_settings",
    "checked",
    "choice",
    "count_words",
    "flag",
    "number",
    "number_words",
    "problems_of",
    "setting_fields",
    "setting_in",
    "share",
    "whole",
    "word",
]

MOST_COUNT = 1_000_000_000
"""The largest count where a key declares none: products of two fit into 64 bits."""

MOST_NUMBER = 1e9
"""The largest number where a key declares none; its products with others are finite, in 32 bits as well."""

_KEY = "setting"
_KEEPS: Mapping[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a value is not accepted, in the words of a :class:`~cohort.core.errors.Problem`.

    Attributes:
        at: The place inside the value: positions in a list, keys of a mapping.
    """

    found: str
    allowed: str
    hint: str
    at: KeyPath = ()

    def problem(self, where: Place) -> Problem:
        """Return it as a problem of the value at ``where``."""
        return Problem(where=where.below(*self.at), found=self.found, allowed=self.allowed, hint=self.hint)


@dataclass(frozen=True, kw_only=True)
class SettingField:
    """What a setting may be.

    Attributes:
        kind: Its type, as pydantic takes it.
        default: Its value where a user gives none; a function that makes it where it can be changed.
        bounds: ``gt``, ``ge``, ``lt`` and ``le``, as pydantic and JSON schema name them.
        options: The words to choose from, where it is one of some words.
        pattern: What a word has to match as a whole, where some of the words have a number in them.
        allowed: The accepted values in words, for messages.
        description: Its meaning and unit in one line, for the schema and the docs.
        check: Says what is wrong with a value, where type, bounds and options cannot.
    """

    kind: Any
    default: Any
    allowed: str
    description: str
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    options: tuple[str, ...] = ()
    pattern: str = ""
    check: Callable[[Any], Iterable[Refusal]] | None = None

    def refusals(self, value: object) -> tuple[Refusal, ...]:
        """Return what is wrong with ``value``; nothing where it is accepted."""
        if self.check is not None:
            return tuple(self.check(value))
        if self.accepts(value):
            return ()
        return (Refusal(found=repr(value), allowed=self.allowed, hint=self._hint(value)),)

    def accepts(self, value: object) -> bool:
        """Return whether ``value`` has the right type and keeps the bounds; ``check`` does not run."""
        if value is None:
            return self.default is None
        if self.options:
            return value in self.options
        if self.pattern:
            return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
        if self.kind is bool:
            return isinstance(value, bool)
        types = (int,) if self.kind is int else (int, float)
        # bool is an int to isinstance, but `patience: true` is a mistake
        if isinstance(value, bool) or not isinstance(value, types):
            return False
        # compared and not asked: a whole number may be larger than any float
        if types != (int,) and not abs(value) <= sys.float_info.max:
            return False
        return all(_KEEPS[name](value, bound) for name, bound in self.bounds.items())

    def _hint(self, value: object) -> str:
        if self.kind is bool:
            return "Write true or false."
        if near := nearest_word(value, self.options):
            return f"Did you mean {near}?"
        return f"Write for example {self.default}, the default." if self.default is not None else "Leave it out."


def share(default: float, description: str, *, least: float | None = None) -> Any:
    """Return a field for a share of a whole, above 0 or of at least ``least``, and at most 1."""
    bounds: dict[str, float] = {"gt": 0, "le": 1} if least is None else {"ge": least, "le": 1}
    allowed = "a share above 0, at most 1" if least is None else f"a share of at least {least:g}, at most 1"
    return _field(kind=float, default=default, bounds=bounds, allowed=allowed, description=description)


def number_words(*, minimum: float | None = 0, most: float = MOST_NUMBER) -> str:
    """Return the range of a number in words; ``minimum`` None: above 0."""
    return f"{'a number above 0' if minimum is None else f'a number of at least {minimum:g}'}, at most {most:,.15g}"


def count_words(*, minimum: int = 1, most: int = MOST_COUNT) -> str:
    """Return the range of a count in words."""
    return f"a whole number of at least {minimum}, at most {most:,}"


def number(
    default: float | None,
    description: str,
    *,
    minimum: float | None = 0,
    below: float | None = None,
    most: float = MOST_NUMBER,
) -> Any:
    """Return a field for a number of at least ``minimum``, above 0 if that is None, and at most ``most``."""
    bounds: dict[str, float] = {"gt": 0} if minimum is None else {"ge": minimum}
    if below is None:
        bounds, allowed = bounds | {"le": most}, number_words(minimum=minimum, most=most)
    else:
        least = "a number above 0" if minimum is None else f"a number of at least {minimum:g}"
        bounds, allowed = bounds | {"lt": below}, f"{least} and below {below:g}"
    return _field(kind=float, default=default, bounds=bounds, allowed=allowed, description=description)


def whole(default: int | None, description: str, *, minimum: int = 1, most: int = MOST_COUNT, null: str = "") -> Any:
    """Return a field for a count; ``null`` says what None means, where that is the default."""
    allowed = count_words(minimum=minimum, most=most) + (f", or null {null}" if null else "")
    bounds = {"ge": minimum, "le": most}
    return _field(kind=int, default=default, bounds=bounds, allowed=allowed, description=description)


def flag(default: bool, description: str) -> Any:  # noqa: FBT001 - the default of a field, as in the others
    return _field(kind=bool, default=default, allowed="true | false", description=description)


def choice(default: str | None, description: str, *, options: tuple[str, ...]) -> Any:
    return _field(kind=str, default=default, options=options, allowed=" | ".join(options), description=description)


def word(default: str, description: str, *, pattern: str, allowed: str) -> Any:
    """Return a field for a word that matches ``pattern`` as a whole; a switch in its place counts as its word."""
    return _field(kind=str, default=default, pattern=pattern, allowed=allowed, description=description)


def checked(
    default: Any, description: str, *, kind: Any, allowed: str, check: Callable[[Any], Iterable[Refusal]]
) -> Any:
    """Return a field whose values ``check`` judges."""
    return _field(kind=kind, default=default, allowed=allowed, description=description, check=check)


def _field(**parts: Any) -> Any:
    setting = SettingField(**parts)
    metadata = {_KEY: setting}
    if callable(setting.default):
        return field(default_factory=setting.default, metadata=metadata)
    return field(default=setting.default, metadata=metadata)


def setting_fields(settings: Any) -> dict[str, SettingField]:
    """Return the fields of a settings dataclass (or of an instance) that were made here, by name."""
    return {f.name: f.metadata[_KEY] for f in dataclasses.fields(settings) if _KEY in f.metadata}


def setting_in(made: Any) -> SettingField:
    """Return the setting that ``number``, ``choice`` and their like made a field for; a setting as it is."""
    found = made if isinstance(made, SettingField) else made.metadata[_KEY]
    assert isinstance(found, SettingField), f"{made!r} was not made here"
    return found


def problems_of(values: Mapping[str, object], settings: Mapping[str, SettingField], *, where: Place) -> list[Problem]:
    """Return the problems of ``values`` (by name, all of them in ``settings``); ``where`` is their section."""
    found = ((name, refusal) for name, value in values.items() for refusal in settings[name].refusals(value))
    return [refusal.problem(where.below(name)) for name, refusal in found]


def check_settings(settings: Any, *, where: Place) -> None:
    """Check an instance, from its ``__post_init__``.

    Raises:
        InputError: every value that its field does not accept.
    """
    fields = setting_fields(settings)
    if problems := problems_of({name: getattr(settings, name) for name in fields}, fields, where=where):
        raise InputError(problems)
