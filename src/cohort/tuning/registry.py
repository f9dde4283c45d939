"""Finds exit rules and samplers: those in a folder of Cohort, and those that installed packages offer.

A module of the folder offers one by a constant of an agreed name. A package offers one by an entry point: its name is
the word users write in a task file, its object the same kind of entry. An offered module is imported when its name is
asked for, not before: a package that is broken stops only the tasks that use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar

from cohort.core.discovery import offered_in
from cohort.core.errors import InputError, Problem

__all__ = ["Registry"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=_Named)


@dataclass(frozen=True, kw_only=True)
class Registry(Generic[EntryT]):
    """All entries of one kind.

    Attributes:
        kind: The class of an entry.
        noun: What messages call it, e.g. ``exit rule``.
        package: The package whose modules are searched.
        constant: The name under which a module offers its entry.
        group: The entry-point group of other packages.
        default: The name that comes first.
        conflict: Returns why an entry cannot stand with those of Cohort, in words; None if it can.
    """

    kind: type[EntryT]
    noun: str
    package: str
    constant: str
    group: str
    default: str
    conflict: Callable[[EntryT], str | None] = lambda _: None

    def built_in(self) -> tuple[EntryT, ...]:
        """Return Cohort's own entries, the default first, then by name."""
        found: tuple[EntryT, ...] = _offered_in(self.package, self.constant)
        return tuple(sorted(found, key=lambda entry: (entry.name != self.default, entry.name)))

    def names(self) -> tuple[str, ...]:
        """Return all names, Cohort's own first. No other package is imported for it.

        Raises:
            InputError: a package offers a name that is taken.
        """
        return (*(entry.name for entry in self.built_in()), *self._points())

    def find(self, name: str) -> EntryT | None:
        """Return the entry of a name; None where there is none.

        Raises:
            InputError: a package offers a name that is taken, or its entry cannot be used.
        """
        # Looked at even for names of ours: a package that offers one that is taken must not pass unnoticed.
        points = self._points()
        own = {entry.name: entry for entry in self.built_in()}
        return own.get(name) or (self._load(points[name]) if name in points else None)

    def plugins(self) -> Iterator[EntryT]:
        """Load and return the entries of other packages.

        Raises:
            InputError: as :meth:`find`.
        """
        return (self._load(point) for point in self._points().values())

    def _points(self) -> dict[str, EntryPoint]:
        # keyed by sys.path, so that a path added later is searched as well
        found = _entry_points(self.group, tuple(sys.path))
        taken = {entry.name: "Cohort" for entry in self.built_in()}
        for point in found:
            if point.name in taken:
                raise self._unusable(point, f"{taken[point.name]} already has one of that name")
            taken[point.name] = f"the package {_package_of(point)}"
        return {point.name: point for point in found}

    def _load(self, point: EntryPoint) -> EntryT:
        try:
            entry = point.load()
        # whatever another package raises while it is imported, its user needs to know which package it was
        except Exception as error:
            raise self._unusable(point, f"it cannot be imported ({type(error).__name__}: {error})") from error
        if not isinstance(entry, self.kind):
            raise self._unusable(point, f"{point.value} is of type {type(entry).__name__}, not {self.kind.__name__}")
        if entry.name != point.name:
            raise self._unusable(point, f"{point.value} names itself {entry.name!r}")
        if (conflict := self.conflict(entry)) is not None:
            raise self._unusable(point, conflict)
        return entry

    def _unusable(self, point: EntryPoint, why: str) -> InputError:
        package = _package_of(point)
        return InputError(
            Problem(
                where=f"the installed package {package}",
                found=f"its {self.noun} {point.name!r} cannot be used: {why}",
                allowed=f"entry points of {self.group} that name a {self.kind.__name__} of their own",
                hint=f"Update {package}, or uninstall it.",
            )
        )


@cache
def _offered_in(package: str, constant: str) -> tuple[Any, ...]:
    return tuple(offered_in(package, constant).values())


@lru_cache(maxsize=8)
def _entry_points(group: str, search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - a cache key
    return tuple(entry_points(group=group))


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
