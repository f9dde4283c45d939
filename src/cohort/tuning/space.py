"""The search space: which configurations there are, as plain values by parameter name.

A parameter is a list of values, a range, a constant, or a multiple of another parameter. Values are plain Python
numbers, strings and booleans, so that they can be written to any file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cohort.core.errors import InputError, Problem
from cohort.tuning.constraints import Constraint, ConstraintError
from cohort.tuning.shares import exact_fraction

__all__ = [
    "MOST_POINTS",
    "Choice",
    "Conditional",
    "Configuration",
    "Constant",
    "MultipleOf",
    "Parameter",
    "Range",
    "SearchSpace",
    "Value",
    "configuration_key",
]

# far beyond what anyone trains; values are listed before one is drawn, so a slip of a zero would hang
MOST_POINTS = 10_000

Value = bool | int | float | str
Configuration = dict[str, Value]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One value for all trials."""

    value: Value


@dataclass(frozen=True, kw_only=True)
class MultipleOf:
    """``factor`` times another parameter, such as ``lora_alpha = 2 r``."""

    parameter: str
    factor: int | float = 1

    def of(self, value: int | float) -> int | float:
        """Return the multiple; whole multiples of whole numbers stay ``int``."""
        product = value * self.factor
        return round(product) if isinstance(value, int) and float(product).is_integer() else product


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of a list of values; an entry may be a multiple of another parameter."""

    values: tuple[Value | MultipleOf, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number between two bounds, both included.

    Attributes:
        min: Lower bound; > 0 with ``log``.
        max: Upper bound, >= ``min``.
        log: Whether draws are uniform in the logarithm.
        step: Only ``min``, ``min + step``, ... are drawn; not with ``log``.
        num: Only ``num`` evenly (with ``log``: geometrically) spaced values are drawn, both bounds among them.
        integer: Whether values are whole numbers.
    """

    min: int | float
    max: int | float
    log: bool = False
    step: int | float | None = None
    num: int | None = None
    integer: bool = False

    def points(self) -> tuple[Value, ...] | None:
        """Return all values in increasing order; None for a range that ``step`` or ``num`` does not divide."""
        if self.step is not None:
            first, last, step = (exact_fraction(bound) for bound in (self.min, self.max, self.step))
            steps = (first + index * step for index in range(math.floor((last - first) / step) + 1))
            return tuple(self._number(float(value)) for value in steps)
        if self.num is None:
            return None
        if self.num == 1 or self.min == self.max:
            return (self._number(self.min),)
        inner = (self._between(index / (self.num - 1)) for index in range(1, self.num - 1))
        values = [self._number(value) for value in (self.min, *inner, self.max)]
        return tuple(dict.fromkeys(values))

    def _between(self, share: float) -> float:
        if self.log:
            return float(self.min * (self.max / self.min) ** share)
        return self.min + (self.max - self.min) * share

    def _number(self, value: float) -> int | float:
        return round(value) if self.integer else float(value)


@dataclass(frozen=True, kw_only=True)
class Conditional:
    """A parameter that is active only where others have given values.

    Attributes:
        parameter: Its values where it is active.
        when: Other parameters and the values of each that make it active; all must agree.
        otherwise: Its value where it is not; None is filled in by whoever makes the space.
    """

    parameter: Choice | Range | Constant | MultipleOf
    when: Mapping[str, tuple[Value, ...]]
    otherwise: Value | MultipleOf | None = None


Parameter = Choice | Range | Constant | MultipleOf | Conditional


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Parameters by name, in the order in which a grid varies them (the last one fastest).

    Attributes:
        parameters: By name.
        where: How messages name the space.
        constraints: What every configuration has to meet.

    Raises:
        InputError: with every problem of every parameter.
    """

    parameters: Mapping[str, Parameter]
    where: str = "search.space"
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", dict(self.parameters))
        problems = [
            Problem(where=f"{self.where}.{name}", found=found, allowed=allowed, mend=mend)
            for name, parameter in self.parameters.items()
            for found, allowed, mend in self._problems_of(name, parameter)
        ]
        if problems:
            raise InputError(problems)

    def drawn(self) -> dict[str, Choice | Range]:
        """Return the parameters that a sampler draws; the others follow from them."""
        inner = {name: p.parameter if isinstance(p, Conditional) else p for name, p in self.parameters.items()}
        return {name: p for name, p in inner.items() if isinstance(p, Choice | Range)}

    def controls(self, name: str) -> tuple[str, ...]:
        """Return the parameters that a value follows from: those that make it active, and those it is a multiple of."""
        parameter = self.parameters[name]
        if not isinstance(parameter, Conditional):
            return _targets_of(parameter)
        own = (parameter.otherwise,) if isinstance(parameter.otherwise, MultipleOf) else ()
        return (*parameter.when, *_targets_of(parameter.parameter), *(multiple.parameter for multiple in own))

    def is_active(self, name: str, draws: Mapping[str, Value | MultipleOf]) -> bool:
        """Tell whether a parameter is active, from draws of the parameters that decide it."""
        parameter = self.parameters[name]
        if not isinstance(parameter, Conditional):
            return True
        return all(self._value_of(other, draws) in values for other, values in parameter.when.items())

    def allows(self, configuration: Configuration) -> bool:
        """Tell whether a whole configuration meets all constraints.

        Raises:
            InputError: a constraint makes no sense for it.
        """
        try:
            return all(constraint.holds(configuration) for constraint in self.constraints)
        except ConstraintError as error:
            raise InputError(
                Problem(
                    where=self.where.replace("search.space", "search.constraints"),
                    found=error.found,
                    allowed=error.allowed,
                    mend=error.mend,
                )
            ) from None

    def resolve(self, draws: Mapping[str, Value | MultipleOf]) -> Configuration:
        """Return a whole configuration from the values of the drawn parameters, in declared order."""
        return {name: self._value_of(name, draws) for name in self.parameters}

    def _value_of(self, name: str, draws: Mapping[str, Value | MultipleOf]) -> Value:
        parameter: Parameter | Value = self.parameters[name]
        entry: Value | MultipleOf
        if isinstance(parameter, Conditional):
            assert parameter.otherwise is not None, "the space was checked on creation"
            parameter = parameter.parameter if self.is_active(name, draws) else parameter.otherwise
        if isinstance(parameter, Constant):
            return parameter.value
        entry = draws[name] if isinstance(parameter, Choice | Range) else parameter
        if not isinstance(entry, MultipleOf):
            return entry
        value = self._value_of(entry.parameter, draws)
        assert isinstance(value, int | float), "the space was checked on creation"
        return entry.of(value)

    def continuous(self) -> tuple[str, ...]:
        """Return the names of ranges whose values cannot be listed."""
        drawn = self.drawn().items()
        return tuple(name for name, parameter in drawn if isinstance(parameter, Range) and parameter.points() is None)

    def configurations(self) -> Iterator[Configuration]:
        """Yield every distinct configuration that meets the constraints, in grid order.

        That is the declared order of parameters, the last one fastest.

        Raises:
            InputError: a range has neither ``num`` nor ``step``, so that its values cannot be listed.
        """
        problems = [
            Problem(
                where=f"{self.where}.{name}",
                found="a range without num or step",
                allowed="in a grid: a list, or a range with num (values) or step (distance)",
                mend="Add num: 5, write a list, or choose sampler: random or tpe.",
            )
            for name in self.continuous()
        ]
        if problems:
            raise InputError(problems)
        drawn = self.drawn()
        columns = [p.values if isinstance(p, Choice) else p.points() or () for p in drawn.values()]
        seen = set()
        for row in itertools.product(*columns):
            configuration = self.resolve(dict(zip(drawn, row, strict=True)))
            key = configuration_key(configuration)
            if key not in seen and self.allows(configuration):
                seen.add(key)
                yield configuration

    def size_bound(self) -> int | None:
        """Return how many configurations there are at most, constraints apart; None when a range is continuous."""
        if self.continuous():
            return None
        columns = (p.values if isinstance(p, Choice) else p.points() or () for p in self.drawn().values())
        return math.prod(len(column) for column in columns)

    def _problems_of(self, name: str, parameter: Parameter) -> Iterator[tuple[str, str, str]]:
        if isinstance(parameter, Conditional):
            yield from self._problems_of_condition(name, parameter)
            if parameter.otherwise is None:
                yield "a condition without a value for the rest", "a value where it is not active", "Give otherwise."
            yield from self._problems_of(name, parameter.parameter)
            if isinstance(parameter.otherwise, MultipleOf):
                yield from self._problems_of_multiple(name, parameter.otherwise)
        elif isinstance(parameter, Choice):
            if not parameter.values:
                yield "an empty list", "at least one value", "Write a value, or remove the key."
            for entry in parameter.values:
                if isinstance(entry, MultipleOf):
                    yield from self._problems_of_multiple(name, entry)
                elif isinstance(entry, float) and not math.isfinite(entry):
                    yield repr(entry), "finite numbers", "Remove it."
        elif isinstance(parameter, MultipleOf):
            yield from self._problems_of_multiple(name, parameter)
        elif isinstance(parameter, Range):
            yield from _problems_of_range(parameter)

    def _problems_of_condition(self, name: str, parameter: Conditional) -> Iterator[tuple[str, str, str]]:
        """Conditions name other parameters that can have such values, and go round in no circle."""
        for other, values in parameter.when.items():
            if other not in self.parameters:
                yield (
                    f"when {other}",
                    f"another parameter: {', '.join(n for n in self.parameters if n != name)}",
                    "Name one.",
                )
                continue
            possible = _values_of(self.parameters[other])
            never = [value for value in values if possible is not None and value not in possible]
            if never:
                shown = ", ".join(map(repr, possible or ()))
                yield f"when {other} is {never[0]!r}", f"values that {other} can have: {shown}", "Correct the value."
        reached, ahead = set[str](), list(parameter.when)
        while ahead:
            other = ahead.pop()
            if other in reached or other not in self.parameters:
                continue
            reached.add(other)
            ahead += self.controls(other)
        if name in reached:
            yield "a condition on itself", "conditions that go round in no circle", "Remove one of the conditions."

    def _problems_of_multiple(self, name: str, multiple: MultipleOf) -> Iterator[tuple[str, str, str]]:
        found = f"{multiple.factor} times {multiple.parameter!r}"
        target = self.parameters.get(multiple.parameter)
        numeric = [other for other, p in self.parameters.items() if other != name and _is_numeric(p)]
        if target is None or multiple.parameter == name or not _is_numeric(target):
            allowed = f"a multiple of a parameter with numbers of its own: {', '.join(numeric) or 'there is none'}"
            yield found, allowed, "Name one of these, or write numbers."
        if not math.isfinite(multiple.factor) or multiple.factor <= 0:
            yield found, "a factor > 0", "Write a factor such as 2."


def configuration_key(configuration: Mapping[str, Value]) -> tuple[tuple[str, bool, Value], ...]:
    """Return what makes two configurations the same: 16 equals 16.0, but 1 is not True."""
    return tuple((name, isinstance(value, bool), value) for name, value in configuration.items())


def _targets_of(parameter: Parameter) -> tuple[str, ...]:
    entries = parameter.values if isinstance(parameter, Choice) else (parameter,)
    return tuple(entry.parameter for entry in entries if isinstance(entry, MultipleOf))


def _values_of(parameter: Parameter) -> tuple[Value, ...] | None:
    """Return the values that a parameter can have; None where they cannot be told."""
    if isinstance(parameter, Conditional):
        inner = _values_of(parameter.parameter)
        rest = parameter.otherwise
        return None if inner is None or rest is None or isinstance(rest, MultipleOf) else (*inner, rest)
    if isinstance(parameter, Constant):
        return (parameter.value,)
    if isinstance(parameter, Choice):
        plain = tuple(value for value in parameter.values if not isinstance(value, MultipleOf))
        return plain if len(plain) == len(parameter.values) else None
    return parameter.points() if isinstance(parameter, Range) else None


def _is_numeric(parameter: Parameter) -> bool:
    """Whether a parameter has numbers of its own, of which a multiple can be taken."""
    if isinstance(parameter, Conditional):
        is_number = isinstance(parameter.otherwise, int | float) and not isinstance(parameter.otherwise, bool)
        return is_number and _is_numeric(parameter.parameter)
    if isinstance(parameter, Choice):
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in parameter.values)
    if isinstance(parameter, Constant):
        return isinstance(parameter.value, int | float) and not isinstance(parameter.value, bool)
    return isinstance(parameter, Range)


def _problems_of_range(parameter: Range) -> Iterator[tuple[str, str, str]]:
    bounds = f"min {parameter.min}, max {parameter.max}"
    if not (math.isfinite(parameter.min) and math.isfinite(parameter.max)) or parameter.min > parameter.max:
        yield bounds, "finite numbers with min <= max", "Exchange or correct them."
        return
    if parameter.log and parameter.min <= 0:
        yield bounds, "min > 0 where log is true", "Raise min, or remove log."
    if parameter.step is not None and (parameter.log or parameter.num is not None):
        yield f"step {parameter.step}", "step without log and without num", "Keep one of them."
    if parameter.step is not None and not parameter.step > 0:
        yield f"step {parameter.step}", "a number > 0", "Write a positive step."
    if parameter.num is not None and parameter.num < 1:
        yield f"num {parameter.num}", "an integer >= 1", "Write how many values to take."
    if parameter.num is not None and parameter.num > MOST_POINTS:
        yield f"num {parameter.num}", f"at most {MOST_POINTS} values", "Take fewer, or leave num out to draw any value."
    if (
        parameter.step is not None
        and parameter.step > 0
        and parameter.max - parameter.min > MOST_POINTS * parameter.step
    ):
        allowed = f"a step that divides the range into at most {MOST_POINTS}"
        yield f"step {parameter.step}", allowed, "Enlarge it, or leave step out to draw any value."
    if parameter.integer and any(
        bound is not None and not float(bound).is_integer() for bound in (parameter.min, parameter.max, parameter.step)
    ):
        yield bounds, "whole numbers, since this parameter is one", "Round min, max and step."
