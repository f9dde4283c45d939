"""Functions that a script or a notebook defines itself: their source, for processes that must not run the script again.

A script's ``__main__`` is another program in a process of rewards. What is sent there is the function and what it
refers to: other functions and classes of the script, imports and constants, and nothing that the script does.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["SCRIPT", "script_source"]

SCRIPT = "__main__"
"""The module of what a script or a notebook defines."""


def script_source(name: str) -> str | None:
    """Return a program that defines the script's function ``name`` and no more; None where its source is not found.

    None as well where it refers to something that has no source and is no constant, such as an open file.
    """
    namespace = vars(sys.modules[SCRIPT])
    parts: dict[str, str] = {}
    pending = [name]
    while pending:
        own = pending.pop()
        # builtins are there in any case
        if own in parts or own not in namespace:
            continue
        part = _part(own, namespace[own])
        if part is None:
            return None
        parts[own] = part
        pending += _names_in(part)
    if name not in parts:
        return None
    # imports first, then constants, then what may use both as a default
    order = sorted(parts, key=lambda own: (not parts[own].startswith(("import ", "from ")), "\n" in parts[own]))
    return "\n\n".join(["from __future__ import annotations", *(parts[own] for own in order)]) + "\n"


def _part(name: str, value: Any) -> str | None:
    """Return the statement that makes ``value``."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, FunctionType | type) and value.__module__ == SCRIPT:
        try:
            return textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            return None
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if isinstance(module, str) and isinstance(own, str) and module != SCRIPT:
        found = getattr(sys.modules.get(module), own, None)
        return f"from {module} import {own} as {name}" if found is value else None
    if type(value).__name__ == "Pattern":
        return f"import re\n{name} = re.compile({value.pattern!r}, {value.flags})"
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return None
    return f"{name} = {value!r}"


def _names_in(source: str) -> Iterator[str]:
    return (node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
