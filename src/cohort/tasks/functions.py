"""Metric, loss and reward functions of a task: from ``module:function`` to its file, and back to its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import KeyPath, Place
from cohort.metrics import FunctionRefusedError, function_path, spelled_function
from cohort.tasks.yaml_lines import TaskOrigin

__all__ = ["FUNCTION_KEYS", "locate_functions", "name_functions"]

FUNCTION_KEYS = (("evaluation", "metric"), ("evaluation", "metrics"), ("objective", "function"))
"""Keys that may name functions; ``objective`` may also be one itself, and ``rewards`` has entries of its own."""


def locate_functions(data: dict[str, Any], base: Path, origin: TaskOrigin) -> list[Problem]:
    """Name the files of functions whose modules lie in ``base`` or in the working directory; note missing files.

    Modules of installed packages keep their names.
    """
    problems: list[Problem] = []

    def located(entry: Any, key: KeyPath) -> Any:
        parts = function_path(entry) if isinstance(entry, str) else None
        # what a notebook defines lies in no file
        if parts is None or parts[0] == "__main__":
            return entry
        module, function = parts
        path = Path(module).expanduser() if module.endswith(".py") else Path(*module.split(".")).with_suffix(".py")
        for folder in (base, Path.cwd()):
            if (folder / path).is_file():
                # the run directory keeps its own copy of the task, so a path must not depend on where the file lies
                return f"{(folder / path).resolve()}:{function}"
        if module.endswith(".py"):
            problems.append(
                Problem(
                    where=origin.where(key),
                    found=f"{module!r}, which does not exist",
                    allowed="a file in the folder of the task file, or module:function of an installed package",
                    hint="Check the path; relative paths start at the task file, in Python at the working directory.",
                )
            )
        return entry

    _replace(data, located)
    return problems


def name_functions(data: dict[str, Any], *, shown: str) -> None:
    """Replace functions of metrics and losses by the names that find them again, as a run's record needs them.

    Raises:
        InputError: a function has no such name.
    """
    problems: list[Problem] = []

    def named(entry: Any, key: KeyPath) -> Any:
        if not callable(entry):
            return entry
        try:
            return spelled_function(entry)
        except FunctionRefusedError as error:
            where = Place(file=shown, key=key)
            named_ones = {"objective": "an objective", "rewards": "a reward"}.get(str(key[0]), "a metric")
            allowed = f"a function that a module defines at its top level, or the name of {named_ones}"
            problems.append(Problem(where=where, found=str(error), allowed=allowed, hint=error.hint))
            return entry

    _replace(data, named)
    if problems:
        raise InputError(problems)


def _replace(data: dict[str, Any], change: Callable[[Any, KeyPath], Any]) -> None:
    objective = data.get("objective")
    if objective is not None and not isinstance(objective, Mapping):
        data["objective"] = change(objective, ("objective",))
    if (rewards := data.get("rewards")) is not None:
        data["rewards"] = _replaced_rewards(rewards, change, ("rewards",))
    for section_name, key in FUNCTION_KEYS:
        section = data.get(section_name)
        if not isinstance(section, Mapping) or key not in section:
            continue
        value = section[key]
        path = (section_name, key)
        if isinstance(value, list | tuple):
            changed = [change(entry, (*path, place)) for place, entry in enumerate(value)]
        else:
            changed = change(value, path)
        data[section_name] = {**section, key: changed}


def _replaced_rewards(value: Any, change: Callable[[Any, KeyPath], Any], key: KeyPath) -> Any:
    """Return ``rewards``, or a part of it, with its functions changed."""
    if isinstance(value, list | tuple):
        return [_replaced_rewards(entry, change, (*key, place)) for place, entry in enumerate(value)]
    if isinstance(value, Mapping):
        name = "functions" if "functions" in value else "function"
        return {**value, name: _replaced_rewards(value[name], change, (*key, name))} if name in value else value
    return change(value, key)
