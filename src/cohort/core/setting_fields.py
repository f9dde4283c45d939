"""Fields of settings dataclasses: default, bounds and description of each in one place.

A dataclass checks itself on creation with :func:`check_settings`. The task file's sections, their JSON schema and the
docs are made from the same fields, so that a bound or a description is written once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place

__all__ = ["SettingField", "check_settings", "flag", "number", "problems_of", "setting_fields", "share", "whole"]

_KEY = "setting"


@dataclass(frozen=True, kw_only=True)
class SettingField:
    """What a setting may be.

    Attributes:
        kind: ``bool``, ``int`` or ``float``.
        default: Its value where a user gives none.
        bounds: ``gt``, ``ge`` and ``le``, as pydantic and JSON schema name them.
        allowed: The accepted values in words, for messages.
        description: Its meaning and unit in one line, for the schema and the docs.
    """

    kind: type[bool] | type[int] | type[float]
    default: float
    bounds: Mapping[str, float]
    allowed: str
    description: str

    def accepts(self, value: object) -> bool:
        """Whether ``value`` has the right type and keeps the bounds."""
        if self.kind is bool:
            return isinstance(value, bool)
        types = (int,) if self.kind is int else (int, float)
        # bool is an int to isinstance, but `patience: true` is a mistake
        if isinstance(value, bool) or not isinstance(value, types) or not math.isfinite(value):
            return False
        low, least, most = (self.bounds.get(name) for name in ("gt", "ge", "le"))
        above = (low is None or value > low) and (least is None or value >= least)
        return above and (most is None or value <= most)

    @property
    def hint(self) -> str:
        """What to do about a value that is not accepted."""
        if self.kind is bool:
            return "Write true or false."
        return f"Write for instance {self.default}, the default."


def share(default: float, description: str) -> Any:
    """Return a field for a share of a whole, above 0 and at most 1."""
    bounds = {"gt": 0, "le": 1}
    return _field(float, default, bounds=bounds, allowed="a share above 0, at most 1", description=description)


def number(default: float, description: str, *, minimum: float = 0) -> Any:
    """Return a field for a finite number."""
    allowed = f"a number of at least {minimum:g}"
    return _field(float, default, bounds={"ge": minimum}, allowed=allowed, description=description)


def whole(default: int, description: str, *, minimum: int = 1) -> Any:
    """Return a field for a count."""
    allowed = f"a whole number of at least {minimum}"
    return _field(int, default, bounds={"ge": minimum}, allowed=allowed, description=description)


def flag(default: bool, description: str) -> Any:  # noqa: FBT001 - the default of a field, as in the other three
    """Return a field that is true or false."""
    return _field(bool, default, bounds={}, allowed="true | false", description=description)


def _field(
    kind: type[bool] | type[int] | type[float],
    default: float,
    *,
    bounds: Mapping[str, float],
    allowed: str,
    description: str,
) -> Any:
    setting = SettingField(kind=kind, default=default, bounds=bounds, allowed=allowed, description=description)
    return field(default=default, metadata={_KEY: setting})


def setting_fields(settings: Any) -> dict[str, SettingField]:
    """Return the fields of a settings dataclass (or of an instance) that were made here, by name."""
    return {f.name: f.metadata[_KEY] for f in dataclasses.fields(settings) if _KEY in f.metadata}


def problems_of(values: Mapping[str, object], settings: Mapping[str, SettingField], *, where: str) -> list[Problem]:
    """Return a problem for each of ``values`` that its field does not accept.

    Args:
        values: By name; all of them are in ``settings``.
        settings: The fields.
        where: The section that messages name, e.g. ``early_exit``.
    """
    return [
        Problem(
            where=Place(key=(where, name)),
            found=repr(value),
            allowed=settings[name].allowed,
            hint=settings[name].hint,
        )
        for name, value in values.items()
        if not settings[name].accepts(value)
    ]


def check_settings(settings: Any, *, where: str) -> None:
    """Check an instance, from its ``__post_init__``.

    Raises:
        InputError: every value that its field does not accept.
    """
    fields = setting_fields(settings)
    if problems := problems_of({name: getattr(settings, name) for name in fields}, fields, where=where):
        raise InputError(problems)
