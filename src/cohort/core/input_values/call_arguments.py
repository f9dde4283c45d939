"""Calls from Python with arguments that a function does not have: named, with the nearest one it has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = ["checks_arguments"]

P = ParamSpec("P")
R = TypeVar("R")

_BOUND = {"self", "cls"}


def checks_arguments(
    name: str, *, elsewhere: Callable[[str], str | None] = lambda _: None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function raise :class:`InputError` where Python would raise a bare TypeError for its arguments.

    Args:
        name: The name of the function for users, e.g. ``Task``.
        elsewhere: Returns the hint for an unknown argument that another place takes; None where there is none.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                raise InputError(list(_problems(name, signature, args, kwargs, elsewhere=elsewhere))) from None
            return function(*args, **kwargs)

        return call

    return decorate


def _problems(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    elsewhere: Callable[[str], str | None],
) -> Iterator[Problem]:
    known = {key: entry for key, entry in signature.parameters.items() if key not in _BOUND}
    named = [key for key, entry in known.items() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
    # methods are bound with their object in front
    positional = args[1:] if _BOUND & set(signature.parameters) else args
    by_place = [key for key, entry in known.items() if entry.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    only_named = [key for key in named if key not in by_place] or named
    for index, value in enumerate(positional[len(by_place) :]):
        yield Problem(
            where=Place(file=name),
            found=f"{_short(value)} without a name",
            allowed=f"arguments by name: {', '.join(named)}",
            hint=f"Write {name}({only_named[min(index, len(only_named) - 1)]}=...).",
        )
    for key, value in kwargs.items():
        if key not in named and len(named) == len(known):
            near = get_close_matches(key.lower(), named, n=1, cutoff=0.6)
            guess = f"Did you mean {near[0]}? Rename it, or remove it." if near else "Choose one of these or remove it."
            hint = elsewhere(key) or guess
            where = Place(file=name, key=(key,))
            yield Problem(
                where=where, found=f"{_short(value)}, an unknown argument", allowed=", ".join(named), hint=hint
            )
        elif key in by_place[: len(positional)]:
            where = Place(file=name, key=(key,))
            yield Problem(where=where, found="two values", allowed="one value", hint=f"Remove {key}=... or the other.")
    given = {*kwargs, *by_place[: len(positional)]}
    for key in named:
        if known[key].default is inspect.Parameter.empty and key not in given:
            yield Problem(
                where=Place(file=name, key=(key,)),
                found="nothing",
                allowed=f"a value: {name} needs {key}",
                hint=f"Write {name}({key}=..., ...).",
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
