"""A task whose run directory holds a run already: is it the same task, on the same rows and weights?"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import dotted
from cohort.engine.changed_rows import row_problems
from cohort.engine.resume_checks import require_same_task
from cohort.prepare.fingerprints import model_fingerprint
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.record_facts import row_facts
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.tasks.loading import load_task
from cohort.tasks.paths import PATH_KEYS
from cohort.tasks.task_file import TaskFile

__all__ = ["places_of", "remove_run", "same_run_problems"]

_HINT = "Give another run directory or name, or write on_existing='overwrite' to train again from the start."


def same_run_problems(
    directory: RunDirectory, task: TaskFile, inputs: TaskInputs, *, hint: str = _HINT
) -> list[Problem]:
    """Return what is not as in the run that ``directory`` holds; nothing if that run can be continued as this task's.

    Args:
        directory: Holds a run.
        task: The task as it is now.
        inputs: What it reads now.
        hint: How to fix what differs.
    """
    task = task.with_rows_in(directory.rows)
    file, since = Path(task.where("model_name_or_path").file), f"as in the run in {directory.root}"
    try:
        if not directory.database.exists():
            # killed before its first checkpoint: nothing was trained, so its rows do not count yet
            before = load_task(directory.task_file).model_dump(mode="json")
            require_same_task(before, task, path=file, since=since, hint=hint)
            return []
        with RunReader.open(directory.database) as reader:
            facts = reader.facts()
        require_same_task(facts.task.document or {}, task, path=file, since=since, hint=hint, machine=facts.machine)
    except InputError as error:
        return [replace(problem, hint=hint) for problem in error.problems]
    problems = row_problems(facts.inputs, row_facts(inputs.data), task=task)
    if model_fingerprint(inputs.model_directory) != facts.inputs.model_hash:
        problems.append(
            Problem(
                where=task.where("model_name_or_path"),
                found=f"{task.model_name_or_path}, other weights or another configuration",
                allowed=f"the base model, {since}",
                hint=hint,
            )
        )
    return [replace(task.located(problem), hint=hint) for problem in problems]


def places_of(task: TaskFile, directory: RunDirectory) -> tuple[str, ...]:
    """Return where the task's inputs are, as the arguments with which :func:`cohort.engine.tune.resume` takes them."""
    document = task.model_dump(mode="json")
    places = []
    is_done = False
    if directory.database.exists():
        with RunReader.open(directory.database) as reader:
            is_done = bool(reader.facts().are_results_written)
    for key in PATH_KEYS:
        value: Any = document
        for part in key:
            # an objective may be its name alone
            value = value.get(part) if isinstance(value, dict) else None
        # a finished run reads no rows
        if is_done and key[0] == "dataset":
            continue
        # rows that were given are in the run's own directory, and a share is no place
        if key[-1] not in task.given and isinstance(value, str | list):
            places.append(f"--{dotted(key)}={json.dumps(value)}")
    return tuple(places)


def remove_run(directory: RunDirectory) -> None:
    """Remove a run with all its results; its lock's file stays.

    Raises:
        RunStateError: a process holds it.
    """
    # nothing else lies in a run directory: a run is made only in an empty one
    with directory.lock() as lock:
        # Killed in between, it must still be a run, so that it can be overwritten again. The copies of the database go
        # first, because a resume would bring it back from them without its trials; what tells a run from other files
        # goes last. The lock's file stays: without its name, another process would lock another file
        last = (directory.database, directory.task_file)
        there = set(directory.root.iterdir())
        others = sorted(there - {lock.path, directory.checkpoints, *last})
        for entry in (each for each in (directory.checkpoints, *others, *last) if each in there):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                # the last reader of the database takes its log away
                entry.unlink(missing_ok=True)
