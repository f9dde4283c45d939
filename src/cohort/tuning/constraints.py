"""Constraints between parameters: ``lora_alpha >= r``, ``batch_size * r <= 256``, ``use_rslora or r < 64``.

A small language that is parsed, checked and evaluated here; nothing is ever executed. It has numbers, strings, ``true``
and ``false``, names of parameters, ``+ - * / // %``, comparisons (also chained, and ``in`` a list), ``and``, ``or``,
``not``, ``min`` and ``max``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

__all__ = ["Constraint", "ConstraintError", "parse_constraint"]

# Long nested texts can crash Python's own parser, which no exception handler would catch.
_LONGEST = 500

# No power: 9**9**9 would not end. Everything that is absent from these tables is refused by name.
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}
_WORDS: Mapping[str, bool] = {"true": True, "false": False}
_ALLOWED = "a comparison such as lora_alpha >= r, with + - * / // % and or not in min max, numbers and texts in quotes"


class ConstraintError(Exception):
    """A text is no constraint, or one that cannot be worked out for a configuration."""

    def __init__(self, *, found: str, allowed: str = _ALLOWED, hint: str) -> None:
        super().__init__(f"{found}; allowed: {allowed}. {hint}")
        self.found, self.allowed, self.hint = found, allowed, hint


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What a configuration has to meet.

    Attributes:
        text: As it was written.
        names: Parameters it is about.
    """

    text: str
    names: frozenset[str]
    _tree: ast.expr = field(repr=False, compare=False)

    def holds(self, configuration: Mapping[str, Any]) -> bool:
        """Return whether a configuration, by parameter name, meets it.

        Raises:
            ConstraintError: it cannot be evaluated: a division by zero, or texts and numbers are compared or added.
        """
        try:
            return bool(_value(self._tree, configuration))
        # A quotient is fine in a space without zeros, so this shows only when a configuration is tried.
        except ArithmeticError as error:
            raise ConstraintError(
                found=f"{self.text!r}, which cannot be worked out for {self._shown(configuration)} ({error})",
                allowed="constraints that can be worked out for every configuration that the other constraints leave",
                hint="Write a product instead of the quotient, rule these values out with another constraint, or take "
                "them out of the space.",
            ) from None
        except TypeError as error:
            raise ConstraintError(
                found=f"{self.text!r}, which makes no sense for {self._shown(configuration)} ({error})",
                hint="Compare numbers with numbers, and strings with == or in.",
            ) from None

    def _shown(self, configuration: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} = {configuration[name]!r}" for name in sorted(self.names))


def parse_constraint(text: object, *, names: Collection[str]) -> Constraint:
    """Return the constraint that a text describes.

    Args:
        names: Parameters it may be about.

    Raises:
        ConstraintError: it is not a text or an expression, uses a part that the language lacks, or names an unknown
            parameter.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConstraintError(found=repr(text), hint='Write for example "lora_alpha >= r", in quotes.')
    if len(text) > _LONGEST:
        raise ConstraintError(found=f"{len(text)} characters", hint="Write several shorter constraints.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConstraintError(
            found=repr(text), hint="Write it as in Python, one comparison or several with and."
        ) from None
    # Checked before it is ever evaluated: the tree comes from a user's file, and eval would run what it says.
    used: set[str] = set()
    _check(tree, text=text, names=names, used=used)
    # A bare number would be true for every configuration, and most likely lost its comparison.
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        raise ConstraintError(found=f"{text!r}, which compares nothing", hint="Add a comparison, such as <= 32.")
    if not used:
        raise ConstraintError(found=f"{text!r}, which is about no parameter", hint="Name a parameter, or remove it.")
    return Constraint(text=text.strip(), names=frozenset(used), _tree=tree)


def _check(node: ast.expr, *, text: str, names: Collection[str], used: set[str]) -> None:
    """Refuse every part that the language lacks; add the parameters to ``used``."""
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name(id=name):
            if name in _WORDS:
                return
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"Did you mean {near[0]}?" if near else "Name one of these, and put texts in quotes."
                raise ConstraintError(found=f"{name!r} in {text!r}", allowed=f"{', '.join(names)}", hint=hint)
            used.add(name)
            return
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            parts = [node.left, node.right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not()):
            parts = [node.operand]
        case ast.BoolOp():
            parts = node.values
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            for comparison, right in zip(node.ops, node.comparators, strict=True):
                # `in` wants a list, and only `in` does: "a" in "abc" and [8] < [16] would be accepted by Python
                if isinstance(comparison, ast.In | ast.NotIn) != isinstance(right, ast.List | ast.Tuple):
                    hint = "Write a list in brackets after in, such as r in [8, 16]."
                    raise ConstraintError(found=repr(ast.unparse(node)), hint=hint)
            parts = [node.left, *node.comparators]
        case ast.List() | ast.Tuple():
            parts = node.elts
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS and len(node.args) > 1 and not node.keywords:
            parts = node.args
        case _:
            hint = "Remove it; conditions that need more can be made by listing values."
            raise ConstraintError(found=f"{ast.unparse(node)!r} in {text!r}", hint=hint)
    for part in parts:
        _check(part, text=text, names=names, used=used)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _WORDS[name] if name in _WORDS else values[name]
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](_number(node.left, values), _number(node.right, values))
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, values)
        case ast.UnaryOp():
            number = _number(node.operand, values)
            return -number if isinstance(node.op, ast.USub) else number
        case ast.BoolOp():
            # A generator, so that `r > 0 and 8 / r > 1` does not divide by zero.
            parts = (bool(_value(part, values)) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.Compare():
            left = _value(node.left, values)
            for comparison, part in zip(node.ops, node.comparators, strict=True):
                right = _value(part, values)
                if not _COMPARISONS[type(comparison)](left, right):
                    return False
                left = right
            return True
        case ast.List() | ast.Tuple():
            return [_value(part, values) for part in node.elts]
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_number(part, values) for part in node.args))
    raise AssertionError(f"{ast.dump(node)} was let through")


def _number(node: ast.expr, values: Mapping[str, Any]) -> Any:
    # Texts are not multiplied: "a" * 10**9 would fill the memory.
    value = _value(node, values)
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value
