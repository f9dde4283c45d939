"""Checks of several tasks before the first one starts, so that no mistake shows up after hours."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.engine.existing_run import same_run_problems
from cohort.engine.tune import RunOptions
from cohort.prepare.inputs import read_inputs
from cohort.runs.directory import RunDirectory
from cohort.tasks.loading import TaskFile
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["existing_runs", "path_of", "require_call", "require_tasks", "said_in_python"]

_CHOICES = ("resume", "overwrite", "error")
# of one file or folder, on the file systems in use
_LONGEST_NAME = 255


def require_tasks(tasks: object, *, early_exit: object, on_existing: object) -> None:
    """Refuse what is no list of tasks, and names that two of them have.

    Raises:
        InputError: all problems.
    """
    if not isinstance(tasks, Sequence) or isinstance(tasks, str) or not all(isinstance(task, Task) for task in tasks):
        entries = tasks if isinstance(tasks, Sequence) and not isinstance(tasks, str) else [tasks]
        found = next(entry for entry in entries if not isinstance(entry, Task))
        hint = "Give a cohort.Task(model=..., dataset=...)."
        if isinstance(found, str | os.PathLike):
            hint = "Write cohort.tune(cohort.load_task(PATH), RUN_DIRECTORY) for a task file."
        elif isinstance(tasks, Iterable) and not isinstance(tasks, Sequence):
            hint = "Write list(tasks), or list(tasks.values()) for a dict of tasks."
        if isinstance(found, TaskFile):
            hint = "Write cohort.tune(task, RUN_DIRECTORY) for a task that was loaded from a file."
        shown = f"a value of type {type(found).__name__}"
        raise InputError(Problem(where="tasks", found=shown, allowed="a cohort.Task, or a list of them", hint=hint))
    problems = []
    if not tasks:
        allowed = "at least one task"
        problems.append(Problem(where="tasks", found="an empty list", allowed=allowed, hint="Give a cohort.Task."))
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            problems.append(
                Problem(
                    where="tasks",
                    found=f"two tasks with the name {name!r}",
                    allowed="each name once: it is the name of the run directory",
                    hint="Give them names: cohort.Task(name=..., ...).",
                )
            )
    if early_exit is not None and not isinstance(early_exit, EarlyExitSettings):
        hint = "Write early_exit=cohort.EarlyExit(rule=...)."
        problems.append(Problem(where="early_exit", found=repr(early_exit), allowed="a cohort.EarlyExit", hint=hint))
    if not isinstance(on_existing, str) or on_existing not in _CHOICES:
        hint = "Write on_existing='resume', which is the default."
        allowed = " | ".join(_CHOICES)
        problems.append(Problem(where="on_existing", found=repr(on_existing), allowed=allowed, hint=hint))
    if problems:
        raise InputError(problems)


def path_of(value: object, *, where: str) -> Path:
    """Return a path that a caller gave.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, str | os.PathLike) and (text := os.fspath(value)) and "\0" not in text:
        if all(len(part.encode(errors="replace")) <= _LONGEST_NAME for part in Path(value).parts):
            return Path(value)
        allowed, hint = f"names of at most {_LONGEST_NAME} bytes", "Write a shorter name."
        raise InputError(Problem(where=where, found=f"{text[:60]!r}...", allowed=allowed, hint=hint))
    shown = repr(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"
    hint = "Write for example 'runs/mine'."
    raise InputError(Problem(where=where, found=shown, allowed="a path, as text or as a pathlib.Path", hint=hint))


def require_call(*, progress: object, watcher: object, options: object) -> None:
    """Refuse values that say nothing about how a run is carried out or shown.

    Raises:
        InputError: all problems.
    """
    wrong = {
        "progress": (progress, progress is None or isinstance(progress, bool), "True, False or None"),
        "watcher": (
            watcher,
            watcher is None
            or (callable(getattr(watcher, "update", None)) and callable(getattr(watcher, "note", None))),
            "an object with update(progress) and note(text)",
        ),
        "options": (options, options is None or isinstance(options, RunOptions), "a cohort.RunOptions"),
    }
    problems = [
        Problem(where=name, found=f"a value of type {type(value).__name__}", allowed=allowed, hint=f"Leave {name} out.")
        for name, (value, is_right, allowed) in wrong.items()
        if not is_right
    ]
    if problems:
        raise InputError(problems)


def said_in_python(occupied: Problem, directory: RunDirectory) -> Problem:
    """Return the problem of a directory that is taken in the words of a call, not of a command."""
    hint = occupied.hint
    if directory.holds_run():
        hint = f"Continue with cohort.resume({str(directory.root)!r}), or give another directory or name."
    return replace(occupied, where=Place(text=f"run_directory {directory.root}"), hint=hint)


def existing_runs(
    files: Mapping[str, TaskFile], directories: Mapping[str, Path], *, on_existing: str
) -> frozenset[str]:
    """Check all tasks, their inputs and directories; return the names of those whose directory holds a run already.

    Raises:
        InputError: anything is wrong with any task, or a run cannot be continued as its task's.
    """
    problems: list[Problem] = []
    existing = set()
    for name, file in files.items():
        directory = RunDirectory(directories[name])
        is_taken = directory.holds_run() and on_existing != "error"
        occupied = None if is_taken else RunDirectory.find_problem(directory.root)
        if occupied is not None:
            occupied = said_in_python(occupied, directory)
        found = list[Problem]()
        # rows and configurations only: weights are loaded when the task starts
        try:
            inputs = read_inputs(file, also=() if occupied is None else (occupied,))
            if is_taken and on_existing == "resume":
                found += same_run_problems(directory, file, inputs)
        except InputError as error:
            found += error.problems
        if is_taken:
            existing.add(name)
        several = len(files) > 1
        problems += [replace(p, where=p.where.in_file(name)) if several else p for p in found]
    if problems:
        raise InputError(problems)
    return frozenset(existing)
