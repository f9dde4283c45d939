"""Finds what the modules of a folder offer, so that a new exit rule, objective or model family is its file alone."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import Any

__all__ = ["modules_of", "offered_in"]


def modules_of(package: str) -> tuple[str, ...]:
    """Return the names of a package's modules, in alphabetical order, without importing any of them."""
    found = importlib.util.find_spec(package)
    folders = None if found is None else found.submodule_search_locations
    assert folders is not None, f"{package} is no package"
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))


def offered_in(package: str, constant: str) -> dict[str, Any]:
    """Import all modules of a package; return what they call ``constant``, by module, in alphabetical order."""
    modules = {name: importlib.import_module(f"{package}.{name}") for name in modules_of(package)}
    return {name: getattr(module, constant) for name, module in modules.items() if hasattr(module, constant)}
