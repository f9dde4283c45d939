"""``--KEY VALUE`` on the command line: a key by its dotted name, or by its last word where that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import KeyPath, Place
from cohort.tasks.hyperparameters import SEARCHABLE
from cohort.tasks.other_names import ACCEPTED
from cohort.tasks.sections.early_exit_section import is_plugin_key
from cohort.tasks.sections.objective_section import is_objective_value
from cohort.tasks.unknown_keys import known_keys, unknown_key_hint
from cohort.tasks.yaml_lines import parse_yaml_value

__all__ = ["Override", "apply_overrides", "parse_overrides"]


@dataclass(frozen=True, kw_only=True)
class Override:
    """One key set on the command line.

    Attributes:
        path: The full key.
        value: As YAML reads it.
        option: As the user typed it, e.g. ``--training.seed``.
    """

    path: KeyPath
    value: Any
    option: str


def _problem(found: str, *, allowed: str, hint: str) -> Problem:
    return Problem(where="command line", found=found, allowed=allowed, hint=hint)


def _pairs(arguments: Sequence[str], problems: list[Problem]) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--") or argument == "--":
            hint = "Write --KEY VALUE, and put quotes around a value with spaces."
            problems.append(_problem(repr(argument), allowed="--KEY VALUE pairs", hint=hint))
        elif "=" in argument:
            option, _, text = argument.partition("=")
            yield option, text
        # no value of a key begins with two dashes: what follows is the next option
        elif position == len(arguments) or arguments[position].startswith("--"):
            found, hint = f"{argument} without a value", f"Write {argument} VALUE."
            problems.append(_problem(found, allowed="--KEY VALUE", hint=hint))
        else:
            yield argument, arguments[position]
            position += 1


def _full_path(option: str, model: type[BaseModel]) -> KeyPath | None:
    """Return the key that an option means; None if there is none or more than one."""
    # options are often typed with dashes; keys have underscores
    key = option.removeprefix("--").replace("-", "_")
    keys = known_keys(model)
    parts: KeyPath = tuple(key.split("."))
    # by its full name, or by the last word of a name that is no key's of ours
    for written, own in ACCEPTED.items():
        if parts == written or (parts == written[-1:] and own[-1:] != parts):
            return own
    is_below_space = parts[:2] == ("search", "space") and 3 <= len(parts) <= 4 and parts[2] in SEARCHABLE
    # checked last, because it reads what packages add
    is_of_plugin = key not in keys and len(parts) == 2 and _is_of_plugin(parts)
    if key in keys or is_below_space or is_of_plugin or (parts[:2] == ("dataset", "columns") and len(parts) == 3):
        return parts
    # a last word that two sections share could mean either, so it needs the full name
    by_leaf = [name for name in keys if name.rsplit(".", 1)[-1] == key]
    return tuple(by_leaf[0].split(".")) if len(by_leaf) == 1 else None


def _is_of_plugin(parts: KeyPath) -> bool:
    """Return whether another package's exit rule or objective has the key."""
    if parts[0] == "early_exit":
        return is_plugin_key(parts[1])
    return parts[0] == "objective" and is_objective_value(str(parts[1]))


def parse_overrides(
    arguments: Sequence[str], *, model: type[BaseModel], unknown: Callable[[str], Problem] | None = None
) -> list[Override]:
    """Return what the arguments set, in order.

    Args:
        unknown: Returns what is wrong with an option that names no key, where not every key may be set.

    Raises:
        InputError: every argument that is no option, has no value, names no key or one that another argument sets, or
            whose value is not YAML.
    """
    problems: list[Problem] = []
    overrides: list[Override] = []
    set_by: dict[KeyPath, str] = {}
    # callers from Python may give anything, and a text alone would be read letter by letter
    given: object = arguments
    if not isinstance(given, list | tuple) or not all(isinstance(argument, str) for argument in given):
        hint = 'Write for example ["--training.seed", "3"].'
        raise InputError(_problem(repr(arguments)[:60], allowed="a list of texts, --KEY VALUE", hint=hint))
    for option, text in _pairs(arguments, problems):
        path = _full_path(option, model)
        if path is None and unknown is not None:
            problems.append(unknown(option))
            continue
        if path is None:
            key = option.removeprefix("--")
            hint = unknown_key_hint(model, tuple(key.replace("-", "_").split(".")), elsewhere="Write that.")
            allowed = "keys of the task file, as --section.key VALUE"
            problems.append(_problem(f"the unknown option {option}", allowed=allowed, hint=hint))
            continue
        # a value that wins over another one unseen is as wrong here as in a task file
        if path in set_by:
            hint = "Remove one of the two; write several values as a list: [a, b]."
            problems.append(_problem(f"{option} after {set_by[path]}", allowed="each key once", hint=hint))
            continue
        set_by[path] = option
        try:
            value = parse_yaml_value(text, where=Place(option=f"command line {option}"))
            overrides.append(Override(path=path, value=value, option=option))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return overrides


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of ``data`` with the overrides set; missing sections are made."""
    result = dict(data)
    for override in overrides:
        section = result
        for part in override.path[:-1]:
            # `early_exit: none` in the file gives way to a key of the section on the command line
            below = section.get(str(part))
            if part == "objective" and isinstance(below, str):
                # `objective: dpo` in the file, and one of its values on the command line
                below = {"type": below}
            if part == "rewards" and isinstance(below, str | list):
                below = {"functions": below}
            section[str(part)] = dict(below) if isinstance(below, Mapping) else {}
            section = section[str(part)]
        section[str(override.path[-1])] = override.value
    return result
