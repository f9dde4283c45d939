"""Declarations that are read from a file's text, without importing the file.

An objective's or an optimizer's file imports torch, which takes seconds; a task file is checked before that. What the
check has to know stands in the same file, in one assignment ``DECLARATION = SomeDeclaration(...)`` at its top level.
The assignment is evaluated alone. It may use literals and a few agreed names, which the file imports like any other,
so that type checkers see ordinary code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["UnreadableDeclarationError", "declaration_in"]

_CONSTANT = "DECLARATION"


class UnreadableDeclarationError(Exception):
    """A declaration uses a name that it may not use, or does not evaluate; the message says which and why."""


def declaration_in(source: str, *, words: Mapping[str, Any]) -> Any:
    """Return the value of ``DECLARATION`` in a file's text; None where the file has none.

    Args:
        words: The names that the declaration may use, with their values.

    Raises:
        UnreadableDeclarationError: it uses other names, or its evaluation raised.
    """
    # most files of a folder have none, and parsing takes longest
    if re.search(rf"^{_CONSTANT}\s*[:=]", source, flags=re.MULTILINE) is None:
        return None
    statement = next((node for node in ast.parse(source).body if _declares(node)), None)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return None
    used = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    if unknown := sorted(used - words.keys()):
        raise UnreadableDeclarationError(
            f"line {statement.lineno} uses {', '.join(unknown)}; a {_CONSTANT} may use literals and "
            f"{', '.join(sorted(words))}, for it is read before torch is imported"
        )
    try:
        # no builtins: a declaration states values, it computes none
        return eval(compile(ast.Expression(statement.value), _CONSTANT, "eval"), {"__builtins__": {}, **words})
    except Exception as error:
        raise UnreadableDeclarationError(f"line {statement.lineno} raised {type(error).__name__}: {error}") from error


def _declares(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == _CONSTANT for target in targets)
