"""The task of a run directory, with its inputs where they are now.

A run knows its inputs by their content, so that they may move: a run directory can be copied to another machine. Its
inputs are then found at the same place relative to it, or where the user says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import KeyPath, Place, dotted
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts
from cohort.tasks.functions import FUNCTION_KEYS
from cohort.tasks.loading import TaskFile, load_task
from cohort.tasks.overrides import Override, parse_overrides
from cohort.tasks.paths import PATH_KEYS
from cohort.tasks.yaml_lines import parse_yaml

__all__ = ["load_run_task", "model_place", "read_run_task", "read_task_file"]


def load_run_task(directory: RunDirectory, *, facts: RunFacts, places: Sequence[str] = ()) -> TaskFile:
    """Return the task of a run that is to continue, with its inputs where they are now.

    ``places`` are command-line arguments that say where inputs are, e.g. ``["--dataset.train", "rows.jsonl"]``.

    Raises:
        InputError: an input is nowhere to be found, ``places`` sets something else, or the task is no longer valid.
    """
    given = _require_places(parse_overrides(places, model=TaskFile))
    moved, problems = [], []
    for key, value in _paths(_task_data(directory)):
        # the user's word counts more than a file that happens to lie at the old place
        if key in given:
            continue
        entries = [value] if isinstance(value, str) else value
        found = [_located(entry, directory=directory, facts=facts) for entry in entries]
        name = dotted(key)
        hint = f"Give its path: cohort resume {directory.root} --{name} PATH"
        problems += [
            _missing(name, entry, directory=directory, hint=hint)
            for entry, there in zip(entries, found, strict=True)
            if not there
        ]
        if None not in found and found != entries:
            moved.append(f"--{name}={json.dumps(found[0] if isinstance(value, str) else found)}")
    if problems:
        raise InputError(problems)
    # as overrides and not as edits: what is loaded is checked, and the resolved task is written out again
    return load_task(directory.task_file, [*moved, *places])


def read_task_file(directory: RunDirectory) -> TaskFile:
    """Return the task that the file of a finished run describes, wherever its inputs are: nothing reads them.

    Raises:
        InputError: the file is gone or no task.
    """
    try:
        return TaskFile.model_validate(_task_data(directory))
    except ValueError:
        # it names file, line and key of each problem
        return load_task(directory.task_file)


def read_run_task(directory: RunDirectory, *, facts: RunFacts, model: str | None = None) -> TaskFile:
    """Return the task of a run whose adapters are to be used.

    Args:
        model: Where the base model is, if the user says so: a path, which becomes absolute, or a hub id.

    Raises:
        InputError: the base model is nowhere to be found.
    """
    # using an adapter needs no rows, so a run whose data are gone can still be exported
    plain = _task_data(directory)
    recorded = plain.get("model_name_or_path")
    if not isinstance(recorded, str):
        return load_task(directory.task_file)
    if model is not None:
        path = Path(model).expanduser()
        return TaskFile.model_validate({**plain, "model_name_or_path": str(path.resolve()) if path.exists() else model})
    found = _located(recorded, directory=directory, facts=facts)
    if found is None:
        hint = "Add --model_name_or_path PATH, where PATH is its directory now."
        raise InputError(_missing("model_name_or_path", recorded, directory=directory, hint=hint))
    return TaskFile.model_validate({**plain, "model_name_or_path": found})


def model_place(places: Sequence[str], *, directory: RunDirectory) -> str:
    """Return where command-line arguments say that the base model of a finished run is.

    Raises:
        InputError: they set something else.
    """
    overrides = parse_overrides(places, model=TaskFile)
    _require_places(overrides)
    rows = [override for override in overrides if override.path != ("model_name_or_path",)]
    if rows:
        raise InputError(
            [
                Problem(
                    where=f"command line {override.option}",
                    found=f"a place of rows, but {directory.root} has finished and reads no rows any more",
                    allowed="--model_name_or_path PATH",
                    hint="Leave the option out.",
                )
                for override in rows
            ]
        )
    return str(overrides[-1].value)


def _task_data(directory: RunDirectory) -> dict[str, Any]:
    """Return the task file as plain data; nothing where it is no task, which load_task() reports."""
    try:
        text = directory.task_file.read_text(encoding="utf-8")
        document = parse_yaml(text, where=Place(file=str(directory.task_file)))
    except (OSError, UnicodeDecodeError):
        return {}
    return document.data if document is not None and isinstance(document.data, dict) else {}


def _paths(plain: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str | list[str]]]:
    for key in (*PATH_KEYS, *FUNCTION_KEYS):
        value: Any = plain
        for part in key:
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            yield key, value


def _located(path: str, *, directory: RunDirectory, facts: RunFacts) -> str | None:
    """Return where an input is now: where it was, or at the same place relative to the run directory; else None.

    The file of a metric function is followed by a colon and the function's name.
    """
    file, colon, function = path.rpartition(":")
    if file.endswith(".py"):
        located = _located(file, directory=directory, facts=facts)
        return None if located is None else f"{located}{colon}{function}"
    # a resolved task has absolute paths; anything else is a hub id, or the name of a metric
    if not Path(path).is_absolute() or Path(path).exists():
        return path
    before = facts.places.run_directory
    if before is None:
        return None
    moved = Path(os.path.normpath(directory.root.resolve() / os.path.relpath(path, before)))
    return str(moved) if moved.exists() else None


def _missing(name: str, path: str, *, directory: RunDirectory, hint: str) -> Problem:
    return Problem(
        where=Place(file=str(directory.task_file), text=name),
        found=f"{path!r}, which does not exist, neither there nor relative to the run directory",
        allowed="the input that the run began with, at its current path",
        hint=hint,
    )


def _require_places(overrides: Sequence[Override]) -> frozenset[KeyPath]:
    """Return the keys that are set, all of them places of inputs.

    Raises:
        InputError: another key is set.
    """
    allowed = ", ".join(f"--{dotted(key)} PATH" for key in PATH_KEYS)
    problems = [
        Problem(
            where="command line",
            found=f"{override.option}, which would change the task of a run",
            allowed=f"{allowed}: where its inputs are now",
            hint="To change anything else, start a new run with `cohort tune`.",
        )
        for override in overrides
        if override.path not in (*PATH_KEYS, *FUNCTION_KEYS)
    ]
    if problems:
        raise InputError(problems)
    return frozenset(override.path for override in overrides)
