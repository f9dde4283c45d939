"""The search space: which configurations there are, as plain values by parameter name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.tuning.constraints import Constraint, ConstraintError
from cohort.tuning.parameters import (
    Choice,
    Conditional,
    Configuration,
    Constant,
    MultipleOf,
    Parameter,
    Range,
    Value,
    is_numeric,
    range_problems,
    targets_of,
    values_of,
)

__all__ = ["SPACE_PLACE", "SearchSpace", "configuration_key"]

SPACE_PLACE = Place(key=("search", "space"))


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Parameters by name, in the order in which a grid varies them (the last one fastest).

    Attributes:
        constraints: What every configuration has to meet.

    Raises:
        InputError: with every problem of every parameter.
    """

    parameters: Mapping[str, Parameter]
    where: Place = SPACE_PLACE
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        # A copy: the caller's mapping may change later, and this object is frozen.
        object.__setattr__(self, "parameters", dict(self.parameters))
        problems = [
            Problem(where=self.where.below(name), found=found, allowed=allowed, hint=hint)
            for name, parameter in self.parameters.items()
            for found, allowed, hint in self._problems_of(name, parameter)
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
            return targets_of(parameter)
        own = (parameter.otherwise,) if isinstance(parameter.otherwise, MultipleOf) else ()
        return (*parameter.when, *targets_of(parameter.parameter), *(multiple.parameter for multiple in own))

    def is_active(self, name: str, draws: Mapping[str, Value | MultipleOf]) -> bool:
        """Return whether a parameter is active, from draws of the parameters that decide it."""
        parameter = self.parameters[name]
        if not isinstance(parameter, Conditional):
            return True
        return all(self._value_of(other, draws) in values for other, values in parameter.when.items())

    def allows(self, configuration: Configuration) -> bool:
        """Return whether a whole configuration meets all constraints.

        Raises:
            InputError: a constraint cannot be worked out for it, and no other rules it out, whatever their order.
        """
        # All constraints are asked before an error counts: `b != 0` may rule out what `a / b > 2` cannot work out.
        errors = []
        for constraint in self.constraints:
            try:
                if not constraint.holds(configuration):
                    return False
            except ConstraintError as error:
                errors.append(error)
        if not errors:
            return True
        where = self.where.at_key("search", "constraints")
        raise InputError([Problem(where=where, found=e.found, allowed=e.allowed, hint=e.hint) for e in errors])

    def constrained(self) -> SearchSpace:
        """Return the space of those parameters alone that constraints are about, and of what these follow from."""
        # Only these need values to try a constraint, and their product may be small enough to list.
        kept, ahead = set[str](), [name for constraint in self.constraints for name in constraint.names]
        while ahead:
            name = ahead.pop()
            if name not in kept:
                kept.add(name)
                ahead += self.controls(name)
        return replace(self, parameters={name: p for name, p in self.parameters.items() if name in kept})

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
                where=self.where.below(name),
                found="a range without num or step",
                allowed="in a grid: a list, or a range with num (values) or step (distance)",
                hint="Add num: 5, write a list, or choose sampler: random or tpe.",
            )
            for name in self.continuous()
        ]
        if problems:
            raise InputError(problems)
        drawn = self.drawn()
        columns = [p.values if isinstance(p, Choice) else p.points() or () for p in drawn.values()]
        # Inactive parameters and repeated entries make different rows one configuration.
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
            yield from range_problems(parameter)

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
            possible = values_of(self.parameters[other])
            never = [value for value in values if possible is not None and value not in possible]
            if never:
                shown = ", ".join(map(repr, possible or ()))
                yield f"when {other} is {never[0]!r}", f"values that {other} can have: {shown}", "Correct the value."
        # Everything the condition depends on, directly or not: the parameter itself must not be among it.
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
        numeric = [other for other, p in self.parameters.items() if other != name and is_numeric(p)]
        if target is None or multiple.parameter == name or not is_numeric(target):
            allowed = f"a multiple of a parameter with numbers of its own: {', '.join(numeric) or 'there is none'}"
            yield found, allowed, "Name one of these, or write numbers."
        if not math.isfinite(multiple.factor) or multiple.factor <= 0:
            yield found, "a factor > 0", "Write a factor such as 2."


def configuration_key(configuration: Mapping[str, Value]) -> tuple[tuple[str, bool, Value], ...]:
    """Return a key that equal configurations share: 16 equals 16.0, but 1 is not True."""
    # Python says 1 == True, so `use_rslora: [true, 1]` would lose an entry without the flag.
    return tuple((name, isinstance(value, bool), value) for name, value in configuration.items())
