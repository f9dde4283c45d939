"""What ``search.space`` may hold: values, ranges, and multiples of the LoRA rank.

learning_rate: [1e-5, 2e-4]                     a list of values
learning_rate: {min: 1e-5, max: 5e-4, log: true}   a range; with step or num: listed values
r: 16                                           one fixed value
lora_alpha: 2r                                  a multiple of the trial's own r, alone or in a list
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from cohort.engine.task_file_refusal import Refusal, nearest_mend, refusals_of, refuse
from cohort.engine.task_file_values import SEARCHABLE, ValueKind, is_number, multiple_to_plain, parse_value
from cohort.tuning.space import Choice, Constant, MultipleOf, Parameter, Range

__all__ = ["num_points", "parameter_to_plain", "parse_parameter", "parse_space"]

_RANGE_KEYS = ("min", "max", "log", "step", "num")
_RANGE_ALLOWED = "min, max, and optionally log: true, step or num"


def _parse_list(entries: list[Any], kind: ValueKind) -> Choice:
    if not entries:
        refuse(Refusal(found="an empty list", allowed=kind.allowed, mend=f"Write for instance {kind.example}."))
    parsed = [parse_value(entry, kind, at=(index,)) for index, entry in enumerate(entries)]
    refusals = [entry for entry in parsed if isinstance(entry, Refusal)]
    values = [entry for entry in parsed if not isinstance(entry, Refusal)]
    for index, value in enumerate(parsed):
        if value in parsed[:index] and not isinstance(value, Refusal):
            mend = "Remove one of the two; to repeat a configuration, search over seed."
            refusals.append(
                Refusal(found=f"{entries[index]!r} twice", allowed="each value once", mend=mend, at=(index,))
            )
    if refusals:
        refuse(*sorted(refusals, key=lambda refusal: refusal.at))
    return Choice(values=tuple(values))


def _bounds(value: Mapping[str, Any], kind: ValueKind, refusals: list[Refusal]) -> dict[str, float]:
    """Return the bounds that are right; note what is wrong with the others."""
    bounds: dict[str, float] = {}
    for name in ("min", "max"):
        if name not in value:
            mend = f"Add {name}, or write a list such as {kind.example}."
            refusals.append(Refusal(found=f"a range without {name}", allowed=_RANGE_ALLOWED, mend=mend))
            continue
        bound = parse_value(value[name], kind, at=(name,))
        if isinstance(bound, Refusal):
            refusals.append(bound)
        elif isinstance(bound, MultipleOf):
            mend = "Write numbers, or a list such as [1r, 2r]."
            refusals.append(Refusal(found=repr(value[name]), allowed="a number", mend=mend, at=(name,)))
        elif not isinstance(bound, str):
            bounds[name] = bound
    return bounds


def _modifier_refusals(value: Mapping[str, Any], kind: ValueKind, bounds: Mapping[str, float]) -> Iterator[Refusal]:
    log, step, num = value.get("log", False), value.get("step"), value.get("num")
    if not isinstance(log, bool):
        yield Refusal(found=repr(log), allowed="true | false", mend="Write log: true.", at=("log",))
    if step is not None and (not is_number(step) or step <= 0 or (kind.is_integer and not float(step).is_integer())):
        allowed = "a whole number above 0" if kind.is_integer else "a number above 0"
        yield Refusal(found=repr(step), allowed=allowed, mend="Correct the step.", at=("step",))
    if num is not None and (isinstance(num, bool) or not isinstance(num, int) or num < 2):
        allowed = "a whole number of at least 2"
        yield Refusal(found=repr(num), allowed=allowed, mend="Write how many values to take.", at=("num",))
    if step is not None and (log is True or num is not None):
        allowed = "step without log and without num"
        yield Refusal(
            found=f"step with {'log' if log is True else 'num'}", allowed=allowed, mend="Keep one.", at=("step",)
        )
    if len(bounds) == 2 and bounds["min"] >= bounds["max"]:
        found = f"min {bounds['min']:g} and max {bounds['max']:g}"
        yield Refusal(found=found, allowed="min below max", mend="Exchange the two, or write a list.")
    if log is True and bounds.get("min", 1.0) <= 0:
        mend = "Raise min above 0, or remove log."
        yield Refusal(found=f"min {bounds['min']:g} with log", allowed="min above 0", mend=mend, at=("min",))


def _parse_range(value: Mapping[str, Any], kind: ValueKind) -> Range:
    if not kind.is_number:
        allowed = f"a list of {kind.allowed}"
        refuse(Refusal(found="a range", allowed=allowed, mend=f"Write for instance {kind.example}."))
    refusals = [
        Refusal(found=f"the key {key!r}", allowed=_RANGE_ALLOWED, mend="Write {min: ..., max: ...}.", at=(key,))
        for key in value
        if key not in _RANGE_KEYS
    ]
    bounds = _bounds(value, kind, refusals)
    refusals += _modifier_refusals(value, kind, bounds)
    if refusals:
        refuse(*refusals)
    step = value.get("step")
    return Range(
        min=bounds["min"],
        max=bounds["max"],
        log=value.get("log", False),
        step=None if step is None else int(step) if kind.is_integer else float(step),
        num=value.get("num"),
        integer=kind.is_integer,
    )


def parse_parameter(value: object, *, kind: ValueKind) -> Parameter:
    """Return one entry of ``search.space``, checked against what the hyperparameter may be.

    Raises:
        pydantic_core.PydanticCustomError: something is wrong; it carries every :class:`Refusal`.
    """
    if isinstance(value, Parameter):
        return value
    if isinstance(value, list | tuple):
        return _parse_list(list(value), kind)
    if isinstance(value, Mapping):
        return _parse_range(value, kind)
    single = parse_value(value, kind, at=())
    if isinstance(single, Refusal):
        refuse(single)
    return single if isinstance(single, MultipleOf) else Constant(value=single)


def parse_space(value: object) -> object:
    """Return ``search.space`` as parameters by name, in the order written; what is no mapping is left to the caller.

    Raises:
        pydantic_core.PydanticCustomError: it carries every :class:`Refusal` of every key.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return value
    refusals: list[Refusal] = []
    space: dict[str, Parameter] = {}
    for name, entry in value.items():
        if name not in SEARCHABLE:
            mend = nearest_mend(str(name), SEARCHABLE, prefix="search.space.")
            allowed = f"keys that can be searched: {', '.join(SEARCHABLE)}"
            refusals.append(Refusal(found=f"the unknown key {name!r}", allowed=allowed, mend=mend, at=(name,)))
            continue
        try:
            space[name] = parse_parameter(entry, kind=SEARCHABLE[name])
        except PydanticCustomError as error:
            refusals += [refusal.below(name) for refusal in refusals_of(error.context)]
    if refusals:
        refuse(*refusals)
    return space


def num_points(parameter: Parameter) -> int | None:
    """Return how many values a grid takes from a parameter; None for a range without step and num."""
    if isinstance(parameter, Choice):
        return len(parameter.values)
    if not isinstance(parameter, Range):
        return 1
    if parameter.step is not None:
        # a billionth of slack: 0.1 + 2 * 0.1 must reach 0.3
        return math.floor((parameter.max - parameter.min) / parameter.step * (1 + 1e-9) + 1e-9) + 1
    return parameter.num


def parameter_to_plain(parameter: Parameter) -> Any:
    """Return the YAML form that :func:`parse_parameter` reads back."""
    if isinstance(parameter, Range):
        plain: dict[str, Any] = {"min": parameter.min, "max": parameter.max}
        if parameter.log:
            plain["log"] = True
        return plain | {key: getattr(parameter, key) for key in ("step", "num") if getattr(parameter, key) is not None}
    if isinstance(parameter, MultipleOf):
        return multiple_to_plain(parameter)
    if isinstance(parameter, Constant):
        return parameter.value
    return [multiple_to_plain(value) if isinstance(value, MultipleOf) else value for value in parameter.values]
