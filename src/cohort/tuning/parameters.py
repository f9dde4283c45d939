"""What a parameter of a search space can be: a list of values, a range, a constant, a multiple, a condition on others.

Values are plain Python numbers, strings and booleans, so that they can be written to any file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cohort.tuning.share_counts import exact_fraction

__all__ = [
    "MOST_POINTS",
    "Choice",
    "Conditional",
    "Configuration",
    "Constant",
    "MultipleOf",
    "Parameter",
    "Range",
    "Value",
    "is_numeric",
    "range_problems",
    "targets_of",
    "values_of",
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
        # lora_alpha of r 16 and factor 2.0 is 32, not 32.0: users and PEFT files write whole numbers.
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
            # In exact fractions, as users wrote them: in floats 0.1 + 2 * 0.1 passes 0.3 and the last value is lost.
            first, last, step = (exact_fraction(bound) for bound in (self.min, self.max, self.step))
            steps = (first + index * step for index in range(math.floor((last - first) / step) + 1))
            return tuple(self._number(float(value)) for value in steps)
        if self.num is None:
            return None
        if self.num == 1 or self.min == self.max:
            return (self._number(self.min),)
        # The bounds themselves, not computed ones, which rounding may move past what the user wrote.
        inner = (self._between(index / (self.num - 1)) for index in range(1, self.num - 1))
        values = [self._number(value) for value in (self.min, *inner, self.max)]
        # Whole numbers of a short range repeat.
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
        otherwise: Its value where it is not; the task fills in its default for None.
    """

    parameter: Choice | Range | Constant | MultipleOf
    when: Mapping[str, tuple[Value, ...]]
    otherwise: Value | MultipleOf | None = None


Parameter = Choice | Range | Constant | MultipleOf | Conditional


def targets_of(parameter: Parameter) -> tuple[str, ...]:
    """Return the parameters of which one takes multiples."""
    entries = parameter.values if isinstance(parameter, Choice) else (parameter,)
    return tuple(entry.parameter for entry in entries if isinstance(entry, MultipleOf))


def values_of(parameter: Parameter) -> tuple[Value, ...] | None:
    """Return the values that a parameter can have; None if they cannot be listed."""
    if isinstance(parameter, Conditional):
        inner = values_of(parameter.parameter)
        rest = parameter.otherwise
        # A default is filled in later, and a multiple follows from other draws: neither is known here.
        return None if inner is None or rest is None or isinstance(rest, MultipleOf) else (*inner, rest)
    if isinstance(parameter, Constant):
        return (parameter.value,)
    if isinstance(parameter, Choice):
        plain = tuple(value for value in parameter.values if not isinstance(value, MultipleOf))
        return plain if len(plain) == len(parameter.values) else None
    return parameter.points() if isinstance(parameter, Range) else None


def is_numeric(parameter: Parameter) -> bool:
    """Return whether a parameter has numbers of its own, of which a multiple can be taken."""
    if isinstance(parameter, Conditional):
        is_number = isinstance(parameter.otherwise, int | float) and not isinstance(parameter.otherwise, bool)
        return is_number and is_numeric(parameter.parameter)
    if isinstance(parameter, Choice):
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in parameter.values)
    if isinstance(parameter, Constant):
        return isinstance(parameter.value, int | float) and not isinstance(parameter.value, bool)
    return isinstance(parameter, Range)


def range_problems(parameter: Range) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a range in itself: what was found, what is allowed, the hint."""
    # Yielded, not raised: the space reports the problems of all its parameters at once.
    bounds = f"min {parameter.min}, max {parameter.max}"
    if not (math.isfinite(parameter.min) and math.isfinite(parameter.max)) or parameter.min > parameter.max:
        yield bounds, "finite numbers with min <= max", "Exchange or correct them."
        # The checks below compare and divide by these bounds.
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
