"""Putting task files on a queue: they are read, checked and named, and digests let a later change be noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.engine.resume_checks import require_same_task
from cohort.prepare.fitting_task import load_fitting_task
from cohort.runs.directory import RunDirectory, choose_name
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.tasks.loading import TaskFile, load_task, task_from_mapping, task_lines

__all__ = ["find_changes", "read_submissions", "submission_of", "task_of"]


def task_of(queued: QueuedTask) -> TaskFile:
    """Return the task as it was added, even if its file has changed or is gone."""
    source = Path(queued.source)
    # messages name lines of the file, as long as it is the one that was added
    is_same = source.is_file() and queued.digests.get(queued.source) == _digest(source)
    lines = task_lines(source) if is_same else {}
    return task_from_mapping(queued.task, base_directory=Path("/"), name=queued.source, lines=lines)


def read_submissions(
    files: Sequence[Path], *, known: Sequence[QueuedTask], directory: Path, clock: Clock
) -> tuple[list[QueuedTask], list[QueuedTask]]:
    """Return (new tasks, tasks that the queue has already) for task files.

    The same file with the same content is the same task, so the same command again continues. A task that failed, was
    held or removed is among the second, to be tried again; one that was removed before it began is new.

    Args:
        directory: The queue's; a task's run directory is the one of its name in it.

    Raises:
        InputError: every problem of all files, including changes since they were added and names that are taken.
    """
    problems: list[Problem] = []
    new: list[QueuedTask] = []
    again: list[QueuedTask] = []
    # its name and file are free again where it left nothing behind
    known = [task for task in known if task.state is not TaskState.REMOVED or has_begun(task.name, directory)]
    by_source = {task.source: task for task in known}
    for path in files:
        source = str(path.resolve())
        if any(task.source == source for task in (*new, *again)):
            problems.append(_repeated(path))
            continue
        try:
            if source in by_source:
                before = by_source[source]
                changes = find_changes(before, directory=directory)
                if has_begun(before.name, directory):
                    hint = "Restore it as it was, or work in another directory with -o."
                    changes = [replace(change, hint=hint) for change in changes]
                problems += changes
                again.append(before)
                continue
            task = load_fitting_task(path)
        except InputError as error:
            problems += error.problems
            continue
        name = choose_name(path.resolve(), taken={other.name for other in (*known, *new)})
        if name is None:
            problems.append(_name_taken(path))
            continue
        occupied = RunDirectory.find_problem(directory / name)
        if occupied is not None:
            problems.append(_occupied(occupied, path=path, run_directory=directory / name))
        new.append(submission_of(name, task, clock=clock, path=path.resolve()))
    if problems:
        raise InputError(problems)
    return new, again


def _occupied(problem: Problem, *, path: Path, run_directory: Path) -> Problem:
    """Return why a task's run cannot be made, with what a queue can do about it."""
    hint = problem.hint
    if RunDirectory(run_directory).holds_run():
        # a queue replaces no run, and continues only those that it began
        hint = f"Choose another directory with -o, or rename the task file; `cohort resume {run_directory}` continues "
        hint += "the run that is there."
    return replace(problem, where=Place(file=str(path), text=f"run directory {run_directory}"), hint=hint)


def submission_of(
    name: str, task: TaskFile, *, clock: Clock, path: Path | None = None, tenant: str = "", weight: float = 1.0
) -> QueuedTask:
    """Return a task as a queue keeps it.

    Args:
        path: Its file; None for a task that was made in Python.
        tenant, weight: As of :class:`~cohort.task_queue.records.QueuedTask`.
    """
    return QueuedTask(
        name=name,
        source=f"Task {name!r}" if path is None else str(path),
        task=task.model_dump(mode="json"),
        digests=_digests(path, task),
        priority=task.priority,
        tenant=tenant,
        weight=weight,
        added_at=clock.now().isoformat(timespec="seconds"),
    )


def has_begun(name: str, directory: Path) -> bool:
    return RunDirectory.find_problem(directory / name) is not None


def find_changes(queued: QueuedTask, *, directory: Path) -> list[Problem]:
    """Return what is no longer as it was when the task was added, key by key and file by file.

    Args:
        directory: The queue's, for the commands in hints.
    """
    problems: list[Problem] = []
    # hours may pass until a task starts: neither its old text nor its new one runs unasked (docs/decisions/0013)
    now = {path: _digest(Path(path)) for path in queued.digests}
    hint = (
        f"Restore it as it was, or accept the change: `cohort queue remove {queued.name} -o {directory}` and "
        f"`cohort queue add {queued.source} -o {directory}`."
    )
    if now.get(queued.source) != queued.digests.get(queued.source):
        # compared key by key: another comment or order of keys changes the file and not the task
        try:
            require_same_task(
                queued.task, load_task(queued.source), path=Path(queued.source), since="as when it was added", hint=hint
            )
        except InputError as error:
            problems += error.problems
    for path, before in queued.digests.items():
        if path != queued.source and now[path] != before:
            problems.append(
                Problem(
                    where=f"{queued.source}: {path}",
                    found="no such file" if now[path] == "" else f"different content (SHA-256 {now[path][:12]})",
                    allowed=f"what it held when the task was added (SHA-256 {before[:12]})",
                    hint=hint,
                )
            )
    return problems


def _digests(path: Path | None, task: TaskFile) -> dict[str, str]:
    data = task.dataset
    named = [*data.train, *(data.validation if isinstance(data.validation, tuple) else ()), *(data.test or ())]
    # a directory of rows counts with every file in it: one that is added changes the data too
    files = [*([] if path is None else [path]), *task.evaluation.function_files]
    for entry in map(Path, named):
        if entry.is_dir():
            files += sorted(file for file in entry.rglob("*") if file.is_file())
        elif entry.is_file():
            files.append(entry)
    return {str(file): _digest(file) for file in files}


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty when it cannot be read."""
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def _repeated(path: Path) -> Problem:
    return Problem(where=str(path), found="the same file twice", allowed="each task once", hint="Name it once.")


def _name_taken(path: Path) -> Problem:
    return Problem(
        where=str(path),
        found=f"a task named {path.stem}, as another file in this queue is",
        allowed="different names: they name the run directories",
        hint="Rename the file, or choose another directory with -o.",
    )
