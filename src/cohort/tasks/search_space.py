"""What ``search.space`` may hold: values, ranges, and multiples of the LoRA rank.

learning_rate: [1e-5, 2e-4]                     a list of values
learning_rate: {min: 1e-5, max: 5e-4, log: true}   a range; with step or num: listed values
r: 16                                           one fixed value
lora_alpha: 2r                                  a multiple of the trial's own r, alone or in a list
warmup_ratio: {values: [0.0, 0.1], when: {lr_scheduler_type: cosine}}   searched only there; else its default holds
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticCustomError

from cohort.core.input_values.nearest_value import keys_text
from cohort.core.setting_fields import Refusal, count_words, number_words
from cohort.tasks.fields import refusals_of, refuse
from cohort.tasks.hyperparameters import SEARCHABLE, ValueKind, is_number, multiple_to_plain, parse_value
from cohort.tasks.other_names import nearest_hint, own_word
from cohort.tuning.constraints import ConstraintError, parse_constraint
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range, Value

__all__ = ["num_points", "parameter_to_plain", "parse_constraints", "parse_parameter", "parse_space"]

# of one range; more are no list that a person compares
MOST_POINTS = 1_000_000
_RANGE_KEYS = ("min", "max", "log", "step", "num")
_RANGE_ALLOWED = "min, max, and optionally log: true, step or num"
_CONDITIONAL_KEYS = ("values", "when")
# what Optuna calls the bounds
_OTHER_BOUNDS = {"min": "low", "max": "high"}


def _parse_list(entries: list[Any], kind: ValueKind) -> Choice:
    if not entries:
        allowed = f"at least one value: {kind.allowed}"
        refuse(Refusal(found="an empty list", allowed=allowed, hint=f"Write for example {kind.example}."))
    parsed = [parse_value(entry, kind, at=(index,)) for index, entry in enumerate(entries)]
    refusals = [entry for entry in parsed if isinstance(entry, Refusal)]
    values = [entry for entry in parsed if not isinstance(entry, Refusal)]
    # a repeated value would train a configuration twice, with the same result to the bit
    for index, value in enumerate(parsed):
        if value in parsed[:index] and not isinstance(value, Refusal):
            hint = "Remove one of the two; to repeat a configuration, search over seed."
            refusals.append(
                Refusal(found=f"{entries[index]!r} twice", allowed="each value once", hint=hint, at=(index,))
            )
    if refusals:
        refuse(*sorted(refusals, key=lambda refusal: refusal.at))
    return Choice(values=tuple(values))


def _bounds(value: Mapping[str, Any], kind: ValueKind, refusals: list[Refusal]) -> dict[str, float]:
    """Return the bounds that are right; note what is wrong with the others."""
    bounds: dict[str, float] = {}
    for name in ("min", "max"):
        if name not in value and _OTHER_BOUNDS[name] in value:
            # said where the other name stands
            continue
        if name not in value:
            hint = f"Add {name}, or write a list such as {kind.example}."
            refusals.append(Refusal(found=f"a range without {name}", allowed=_RANGE_ALLOWED, hint=hint))
            continue
        bound = parse_value(value[name], kind, at=(name,))
        if isinstance(bound, Refusal):
            refusals.append(bound)
        # r differs between trials, while a sampler needs the bounds before it draws
        elif isinstance(bound, MultipleOf):
            hint = "Write numbers, or a list such as [1r, 2r]."
            refusals.append(Refusal(found=repr(value[name]), allowed="a number", hint=hint, at=(name,)))
        elif not isinstance(bound, str):
            bounds[name] = bound
    return bounds


def _modifier_refusals(value: Mapping[str, Any], kind: ValueKind, bounds: Mapping[str, float]) -> Iterator[Refusal]:
    log, step, num = value.get("log", False), value.get("step"), value.get("num")
    if not isinstance(log, bool):
        yield Refusal(found=repr(log), allowed="true | false", hint="Write log: true.", at=("log",))
    if step is not None and (not is_number(step) or step <= 0 or (kind.is_integer and not float(step).is_integer())):
        allowed = count_words() if kind.is_integer else number_words(minimum=None)
        yield Refusal(found=repr(step), allowed=allowed, hint="Correct the step.", at=("step",))
    if num is not None and (isinstance(num, bool) or not isinstance(num, int) or not 2 <= num <= MOST_POINTS):
        allowed = count_words(minimum=2, most=MOST_POINTS)
        yield Refusal(found=repr(num), allowed=allowed, hint="Write how many values to take.", at=("num",))
    # multiplied, not divided: a tiny step would give more values than there are numbers
    span = bounds["max"] - bounds["min"] if len(bounds) == 2 else 0
    if is_number(step) and 0 < step * MOST_POINTS < span:
        allowed = f"a step that gives at most {MOST_POINTS:,} values"
        yield Refusal(found=repr(step), allowed=allowed, hint="Raise the step, or leave it out.", at=("step",))
    # steps of equal size are not evenly spaced in the logarithm, and num fixes the step itself
    if step is not None and (log is True or num is not None):
        allowed = "step without log and without num"
        yield Refusal(
            found=f"step with {'log' if log is True else 'num'}", allowed=allowed, hint="Keep one.", at=("step",)
        )
    if len(bounds) == 2 and bounds["min"] >= bounds["max"]:
        found = f"min {bounds['min']:g} and max {bounds['max']:g}"
        yield Refusal(found=found, allowed="min below max", hint="Exchange the two, or write a list.")
    if log is True and bounds.get("min", 1.0) <= 0:
        hint = "Raise min above 0, or remove log."
        yield Refusal(found=f"min {bounds['min']:g} with log", allowed="min above 0", hint=hint, at=("min",))


def _parse_range(value: Mapping[str, Any], kind: ValueKind) -> Range:
    # other tuners put a list under a key of its own: choices, categories, grid
    listed = [key for key, entry in value.items() if isinstance(entry, list | tuple) and key not in _RANGE_KEYS]
    if listed and not {"min", "max"} & set(value):
        hint = f"Write {kind.example}; with a condition: {{values: {kind.example}, when: {{OTHER_KEY: VALUE}}}}."
        allowed = "a list, a range, or values with when"
        refuse(Refusal(found=f"a list under the key {listed[0]!r}", allowed=allowed, hint=hint, at=(listed[0],)))
    if not kind.is_number:
        allowed = f"a list of {kind.allowed}"
        refuse(Refusal(found="a range", allowed=allowed, hint=f"Write for example {kind.example}."))
    ours = {other: name for name, other in _OTHER_BOUNDS.items()}
    refusals = [
        Refusal(
            found=f"the key {key!r}",
            allowed=_RANGE_ALLOWED,
            hint=f"Rename it: {ours[key]}." if key in ours else "Write {min: ..., max: ...}.",
            at=(key,),
        )
        for key in value
        if key not in _RANGE_KEYS
    ]
    # both are asked before anything is refused, so that one run shows every mistake in the range
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


def _parse_conditional(value: Mapping[str, Any], kind: ValueKind) -> Conditional:
    """Return ``{values: [...], when: {...}}`` or a range with ``when``."""
    rest = {key: entry for key, entry in value.items() if key != "when"}
    # values alone would be a list written the long way; a forgotten condition is likelier
    if "when" not in value:
        hint = "Write the list itself, or add when: {OTHER_KEY: VALUE}."
        refuse(Refusal(found="values without when", allowed="a list, or values with when", hint=hint))
    when = _parse_when(value["when"])
    if "values" not in rest:
        return Conditional(parameter=_parse_range(rest, kind), when=when)
    if len(rest) > 1:
        found = ", ".join(str(key) for key in rest if key != "values")
        allowed = "values and when, or a range and when"
        refuse(Refusal(found=f"values together with {found}", allowed=allowed, hint="Keep one."))
    values = rest["values"]
    entries = list(values) if isinstance(values, list | tuple) else [values]
    return Conditional(parameter=_parse_list(entries, kind), when=when)


def _parse_when(value: object) -> dict[str, tuple[Value, ...]]:
    allowed = "when: {KEY: VALUE} or {KEY: [VALUES]}, with other keys that can be searched"
    if not isinstance(value, Mapping) or not value:
        refuse(Refusal(found=repr(value), allowed=allowed, hint="Write for example {r: [32, 64]}.", at=("when",)))
    when: dict[str, tuple[Value, ...]] = {}
    refusals: list[Refusal] = []
    for name, entries in value.items():
        at = ("when", str(name))
        if name not in SEARCHABLE:
            hint = nearest_hint(str(name), SEARCHABLE)
            refusals.append(Refusal(found=f"the unknown key {name!r}", allowed=allowed, hint=hint, at=at))
            continue
        kind = SEARCHABLE[name]
        written = entries if isinstance(entries, list | tuple) else [entries]
        parsed = [parse_value(entry, kind, at=at) for entry in written]
        refusals += [entry for entry in parsed if isinstance(entry, Refusal)]
        if any(isinstance(entry, MultipleOf) for entry in parsed):
            refusals.append(Refusal(found="a multiple", allowed="numbers", hint="Write numbers.", at=at))
        when[name] = tuple(entry for entry in parsed if not isinstance(entry, Refusal | MultipleOf))
    if refusals:
        refuse(*refusals)
    return when


def parse_constraints(value: object) -> tuple[str, ...]:
    """Return ``search.constraints``: texts such as ``lora_alpha >= r``.

    Raises:
        pydantic_core.PydanticCustomError: it carries every :class:`Refusal`.
    """
    entries = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        refuse(Refusal(found=repr(value), allowed="a list of strings", hint='Write ["lora_alpha >= r"].'))
    refusals = []
    for index, entry in enumerate(entries):
        try:
            parse_constraint(entry, names=tuple(SEARCHABLE))
        except ConstraintError as error:
            refusals.append(Refusal(found=error.found, allowed=error.allowed, hint=error.hint, at=(index,)))
    if refusals:
        refuse(*refusals)
    return tuple(entries)


def parse_parameter(value: object, *, kind: ValueKind) -> Parameter:
    """Return one entry of ``search.space``, checked against what the hyperparameter may be.

    Raises:
        pydantic_core.PydanticCustomError: something is wrong; it carries every :class:`Refusal`.
    """
    # defaults and copies of a task hold parameters, not what a file says
    if isinstance(value, Parameter):
        return value
    if isinstance(value, list | tuple):
        return _parse_list(list(value), kind)
    if isinstance(value, Mapping):
        return _parse_conditional(value, kind) if set(_CONDITIONAL_KEYS) & set(value) else _parse_range(value, kind)
    # one value is not searched: it takes the place of the section's
    single = parse_value(value, kind, at=())
    if isinstance(single, Refusal):
        refuse(single)
    return single if isinstance(single, MultipleOf) else Constant(value=single)


def parse_space(value: object) -> object:
    """Return ``search.space`` as parameters by name, in the order written; anything but a mapping is left to pydantic.

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
            hint = nearest_hint(str(name), SEARCHABLE, prefix="search.space.")
            allowed = f"keys that can be searched: {keys_text(str(name), tuple(SEARCHABLE), meant=own_word(str(name)))}"
            refusals.append(Refusal(found=f"the unknown key {name!r}", allowed=allowed, hint=hint, at=(name,)))
            continue
        try:
            space[name] = parse_parameter(entry, kind=SEARCHABLE[name])
        # collected over all keys: pydantic would stop at the first validator that raises
        except PydanticCustomError as error:
            refusals += [replace(refusal, at=(name, *refusal.at)) for refusal in refusals_of(error.context)]
    if refusals:
        refuse(*refusals)
    return space


def num_points(parameter: Parameter) -> int | None:
    """Return how many values a grid takes from a parameter; None for a range without step and num."""
    if isinstance(parameter, Conditional):
        return num_points(parameter.parameter)
    if isinstance(parameter, Choice):
        return len(parameter.values)
    if not isinstance(parameter, Range):
        return 1
    if parameter.step is not None:
        # a billionth of slack: in floats 0.1 + 2 * 0.1 falls short of 0.3, which must count as reached
        return math.floor((parameter.max - parameter.min) / parameter.step * (1 + 1e-9) + 1e-9) + 1
    return parameter.num


def parameter_to_plain(parameter: Parameter) -> Any:
    """Return the YAML form that :func:`parse_parameter` reads back."""
    if isinstance(parameter, Conditional):
        inner = parameter_to_plain(parameter.parameter)
        when = {name: list(values) for name, values in parameter.when.items()}
        return {**(inner if isinstance(inner, dict) else {"values": inner}), "when": when}
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
