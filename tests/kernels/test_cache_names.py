"""A kernel's name in Triton's cache depends on the kernel alone, not on what the process launched before it.

Triton 3.6 takes over the constants (``tl.constexpr`` of a module) of a called function only where that function has
been named before. So a function that several kernels call must read none: the process that compiles ahead names kernels
in another order than the one that launches them, and would leave them where nobody looks.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from typing import Any

import pytest

import cohort.kernels

pytest.importorskip("triton")

# adamw and adamw_8bit share it: a search over both optimizers compiles one of their kernels twice
KNOWN = {"stepped"}


def jitted() -> dict[str, Any]:
    """Return Triton's functions of all kernels by name; under its interpreter they are of another class."""
    found = {}
    for module in pkgutil.walk_packages(cohort.kernels.__path__, "cohort.kernels."):
        for function in vars(importlib.import_module(module.name)).values():
            if type(function).__module__.startswith("triton.") and hasattr(function, "fn"):
                found[f"{function.fn.__module__}.{function.fn.__name__}"] = function
    return {name: function for name, function in found.items() if name.startswith("cohort.")}


def read_globals(function: Any) -> dict[str, Any]:
    """Return what a function reads of its module, by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function.fn)))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {name: function.fn.__globals__[name] for name in names if name in function.fn.__globals__}


def kernels_that_reach(name: str, callers: dict[str, set[str]]) -> set[str]:
    if not callers[name]:
        return {name}
    return set().union(*(kernels_that_reach(caller, callers) for caller in callers[name]))


def test_functions_that_kernels_share_read_no_constants() -> None:
    functions = jitted()
    assert len(functions) > 60
    names = {id(function): name for name, function in functions.items()}
    callers: dict[str, set[str]] = {name: set() for name in functions}
    for name, function in functions.items():
        for value in read_globals(function).values():
            if id(value) in names and names[id(value)] != name:
                callers[names[id(value)]].add(name)
    shared = {name for name in functions if len(kernels_that_reach(name, callers)) > 1}
    assert any(name.endswith(".entry_fields") for name in shared)
    constants = {
        name: sorted(key for key, value in read_globals(functions[name]).items() if type(value).__name__ == "constexpr")
        for name in shared
    }
    assert {name: found for name, found in constants.items() if found and name.rsplit(".", 1)[-1] not in KNOWN} == {}
