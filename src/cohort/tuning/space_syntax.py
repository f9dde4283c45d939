"""Search spaces as plain Python values: lists, ranges, constants and multiples such as ``2r``.

For those who use :mod:`cohort.tuning` alone, where pydantic need not be installed and parameters may have any name. A
task file and :class:`cohort.Task` go through ``tasks/search_space.py``, which knows hyperparameters and lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.tuning.parameters import Choice, Constant, MultipleOf, Parameter, Range, Value
from cohort.tuning.space import SPACE_PLACE, SearchSpace

__all__ = ["INTEGER_PARAMETERS", "parse_space"]

INTEGER_PARAMETERS = frozenset({"r", "batch_size", "max_steps", "seed"})
"""Parameters whose ranges are ranges of whole numbers unless ``integer: false`` is written."""

_MULTIPLE = re.compile(r"(?P<factor>\d+(?:\.\d+)?)?\s*\*?\s*(?P<parameter>[A-Za-z_]\w*)")
_RANGE_KEYS = ("min", "max", "log", "step", "num", "integer")


class _RefusedError(Exception):
    """A value that cannot be read; becomes a :class:`Problem` where its place is known."""

    def __init__(self, *, found: object, allowed: str, hint: str) -> None:
        super().__init__(allowed)
        self.found = repr(found)
        self.allowed = allowed
        self.hint = hint


def parse_space(
    space: Mapping[str, Any],
    *,
    base: Mapping[str, Value] | None = None,
    integer_parameters: Collection[str] = INTEGER_PARAMETERS,
    where: Place = SPACE_PLACE,
) -> SearchSpace:
    """Return the search space of a task file.

    A list is a choice, ``{min, max, log, step, num, integer}`` a range, ``2r`` or ``2 * r`` a multiple of another
    parameter, any other number, string or boolean a constant. Entries of a list may be multiples as well.

    Args:
        space: Parameter name to value, as read from YAML or JSON.
        base: Values that hold where the space does not set a parameter, so that ``lora_alpha: 2r`` can follow an ``r``
            outside the space.
        integer_parameters: Names whose ranges are of whole numbers.

    Raises:
        InputError: with all problems.
    """
    parameters: dict[str, Parameter] = {}
    # All keys are read before any is refused, so that users see every mistake at once.
    problems: list[Problem] = []
    for name, written in space.items():
        try:
            parameters[name] = _parameter(
                name, written, names=space, base=base or {}, is_integer=name in integer_parameters
            )
        except _RefusedError as refused:
            problems.append(
                Problem(where=where.below(name), found=refused.found, allowed=refused.allowed, hint=refused.hint)
            )
    if problems:
        raise InputError(problems)
    return SearchSpace(parameters=parameters, where=where)


def _parameter(
    name: str, written: object, *, names: Collection[str], base: Mapping[str, Value], is_integer: bool
) -> Parameter:
    if isinstance(written, Mapping):
        return _range(written, is_integer=is_integer)
    if isinstance(written, list | tuple):
        return Choice(values=tuple(_entry(name, value, names=names, base=base) for value in written))
    entry = _entry(name, written, names=names, base=base)
    return entry if isinstance(entry, MultipleOf) else Constant(value=entry)


def _entry(name: str, written: object, *, names: Collection[str], base: Mapping[str, Value]) -> Value | MultipleOf:
    if isinstance(written, bool | int | float):
        return written
    if not isinstance(written, str):
        raise _RefusedError(found=written, allowed="a number, a string, true or false", hint="Write one value.")
    # PyYAML reads 1e-5 as a text (it wants 1.0e-5): refused, or it would be searched as a word.
    try:
        float(written)
    except ValueError:
        pass
    else:
        raise _RefusedError(found=written, allowed="a number", hint="Write it without quotes.")
    # A bare name is a multiple only of a known parameter: `cosine` is a value.
    match = _MULTIPLE.fullmatch(written.strip())
    known = {*names, *base}
    if match is None or (match["factor"] is None and match["parameter"] not in known):
        return written
    target, factor = match["parameter"], match["factor"] or "1"
    if target not in known or target == name:
        near = get_close_matches(target, [other for other in known if other != name], n=1)
        raise _RefusedError(
            found=written,
            allowed="a multiple of another parameter of the task",
            hint=f"Did you mean {factor}{near[0]}?" if near else f"Set {target} as well.",
        )
    multiple = MultipleOf(parameter=target, factor=float(factor) if "." in factor else int(factor))
    if target in names:
        return multiple
    # The target is not searched, so the multiple is a number already.
    value = base[target]
    if isinstance(value, bool | str):
        raise _RefusedError(found=written, allowed=f"a number; {target} is {value!r}", hint="Write a number.")
    return multiple.of(value)


def _range(written: Mapping[Any, Any], *, is_integer: bool) -> Range:
    # A mistyped `log` would search the range evenly, and nothing would show it.
    unknown = [key for key in written if key not in _RANGE_KEYS]
    if unknown:
        near = get_close_matches(str(unknown[0]), _RANGE_KEYS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Remove it."
        raise _RefusedError(found=unknown[0], allowed=", ".join(_RANGE_KEYS), hint=hint)
    for key in ("min", "max"):
        if key not in written:
            raise _RefusedError(found=dict(written), allowed="a range with min and max", hint=f"Add {key}.")
    for key in ("min", "max", "step"):
        value = written.get(key)
        if (value is not None or key != "step") and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _RefusedError(found=value, allowed=f"a number for {key}", hint="Write a number, without quotes.")
    for key in ("log", "integer"):
        if not isinstance(written.get(key, False), bool):
            raise _RefusedError(found=written[key], allowed=f"true or false for {key}", hint="Write true or false.")
    num = written.get("num")
    if num is not None and (isinstance(num, bool) or not isinstance(num, int)):
        raise _RefusedError(found=num, allowed="an integer for num", hint="Write how many values to take.")
    return Range(
        min=written["min"],
        max=written["max"],
        log=written.get("log", False),
        step=written.get("step"),
        num=num,
        integer=written.get("integer", is_integer),
    )
