"""Finds what extends Cohort: entries in a folder of its own, and those that installed packages offer.

A module of the folder offers one by a constant of an agreed name. A package offers one by an entry point: its name is
the word users write in a task file, its object the same kind of entry. An offered module is imported when its name is
asked for, not before: a package that is broken stops only the tasks that use it.

Exit rules, samplers, metrics and model families are cheap to import (:class:`Registry`). Objectives, optimizers and
weight formats import torch, and task files are checked without it: what the check needs of them is read from their
files (:class:`DeclaredRegistry`).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cohort.core.declarations import UnreadableDeclarationError, declaration_in
from cohort.core.discovery import modules_of, offered_in
from cohort.core.errors import InputError, Problem

__all__ = ["DeclaredRegistry", "Entries", "Registry"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=_Named)


@dataclass(frozen=True, kw_only=True)
class Entries(Generic[EntryT]):
    """The entries of one kind, by name: what both kinds of registry share.

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
        return tuple(sorted(self._own().values(), key=lambda entry: (entry.name != self.default, entry.name)))

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
        return own.get(name) or (self._checked(points[name]) if name in points else None)

    def plugins(self) -> Iterator[EntryT]:
        """Return the entries of other packages.

        Raises:
            InputError: as :meth:`find`.
        """
        return (self._checked(point) for point in self._points().values())

    def known(self, name: str | None) -> EntryT | None:
        """Return the entry of a name that a record has; None where nothing that can be used has it any more."""
        return next((entry for entry in self.usable() if entry.name == name), None)

    def usable(self) -> tuple[EntryT, ...]:
        """Return all entries, Cohort's own first, without those that cannot be used: only their users are stopped."""
        found = list(self.built_in())
        try:
            points = self._points()
        except InputError:
            return tuple(found)
        for point in points.values():
            try:
                found.append(self._checked(point))
            except InputError:
                continue
        return tuple(found)

    def _own(self) -> Mapping[str, EntryT]:
        """Return Cohort's own entries by module."""
        raise NotImplementedError

    def _read(self, point: EntryPoint) -> Any:
        """Return the entry that another package offers."""
        raise NotImplementedError

    def _points(self) -> dict[str, EntryPoint]:
        # keyed by sys.path, so that a path added later is searched as well
        found = _entry_points(self.group, tuple(sys.path))
        taken = {entry.name: "Cohort" for entry in self.built_in()}
        for point in found:
            if point.name in taken:
                raise self._unusable(point, f"{taken[point.name]} already has one of that name")
            taken[point.name] = f"the package {_package_of(point)}"
        return {point.name: point for point in found}

    def _checked(self, point: EntryPoint) -> EntryT:
        entry = self._read(point)
        if not isinstance(entry, self.kind):
            raise self._unusable(point, f"{point.value} is of type {type(entry).__name__}, not {self.kind.__name__}")
        if entry.name != point.name:
            raise self._unusable(point, f"{point.value} names itself {entry.name!r}")
        if (conflict := self.conflict(entry)) is not None:
            raise self._unusable(point, conflict)
        return entry

    def _imported(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        # whatever another package raises while it is imported, its user needs to know which package it was
        except Exception as error:
            raise self._unusable(point, f"it cannot be imported ({type(error).__name__}: {error})") from error

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


@dataclass(frozen=True, kw_only=True)
class Registry(Entries[EntryT]):
    """All entries of one kind whose modules are imported to know them."""

    def _own(self) -> Mapping[str, EntryT]:
        return _offered_in(self.package, self.constant)

    def _read(self, point: EntryPoint) -> Any:
        return self._imported(point)


@dataclass(frozen=True, kw_only=True)
class DeclaredRegistry(Entries[EntryT]):
    """All entries of one kind whose modules import torch: each states what it is in its ``DECLARATION``.

    An entry is the declaration, which is read from the module's text; :meth:`load` imports what it declares.

    Attributes:
        words: The names that a declaration may use.
    """

    words: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import and return what a name declares.

        Raises:
            KeyError: nothing has this name.
            InputError: as :meth:`find`, or the package cannot be imported.
        """
        module = next((module for module, entry in self._own().items() if entry.name == name), None)
        if module is not None:
            return getattr(importlib.import_module(f"{self.package}.{module}"), self.constant)
        point = self._points()[name]
        self._checked(point)
        return self._imported(point)

    def _own(self) -> Mapping[str, EntryT]:
        return _declared_in(self.package, self.kind, tuple(self.words.items()))

    def _read(self, point: EntryPoint) -> Any:
        try:
            # finds a module in a package by importing the package, and nothing else of it
            found = _declaration_of(point.module, words=self.words)
        # whatever another package raises while it is imported, its user needs to know which package it was
        except Exception as error:
            why = str(error) if isinstance(error, UnreadableDeclarationError) else f"{type(error).__name__}: {error}"
            raise self._unusable(point, f"its declaration cannot be read ({why})") from error
        if found is None:
            raise self._unusable(point, f"{point.module} has no DECLARATION = {self.kind.__name__}(...)")
        return found


@cache
def _offered_in(package: str, constant: str) -> Mapping[str, Any]:
    return offered_in(package, constant)


@cache
def _declared_in(package: str, kind: type, words: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    found = {name: _declaration_of(f"{package}.{name}", words=dict(words)) for name in modules_of(package)}
    return {name: entry for name, entry in found.items() if isinstance(entry, kind)}


def _declaration_of(module: str, *, words: Mapping[str, Any]) -> Any:
    """Return what the module declares; None where it declares nothing."""
    spec = importlib.util.find_spec(module)
    source, get_source = None, getattr(spec.loader if spec is not None else None, "get_source", None)
    if get_source is not None:
        source = get_source(module)
    elif spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        # a loader of one's own need not tell the text
        source = Path(spec.origin).read_text(encoding="utf-8")
    if source is None:
        raise UnreadableDeclarationError(f"the text of {module} is not to be found")
    return declaration_in(source, words=words)


@lru_cache(maxsize=32)
def _entry_points(group: str, search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - a cache key
    return tuple(entry_points(group=group))


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
