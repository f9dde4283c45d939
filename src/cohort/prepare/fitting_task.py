"""A task from its file: where the file is wrong, with what is wrong with its model and its rows as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.core.errors import InputError, Problem, in_file_order
from cohort.models.source import find_local_model, refuse_missing_model
from cohort.prepare.inputs import read_inputs
from cohort.prepare.rows.reading import are_rows_local, check_rows
from cohort.tasks.loading import TaskFileError, load_task
from cohort.tasks.task_file import TaskFile

__all__ = ["load_fitting_task"]


def load_fitting_task(path: str | Path, overrides: Sequence[str] = (), *, also: Sequence[Problem] = ()) -> TaskFile:
    """Return the task of a file; if the file is wrong, raise its problems together with those of its model and rows.

    A correct file is returned immediately: its data and model are read where they are used.

    Args:
        overrides: Command-line arguments (:func:`load_task`).
        also: Known problems, to be listed with the others.

    Raises:
        InputError: every problem of the task file, and of its model and rows as far as they can be found.
    """
    try:
        return load_task(path, overrides)
    except TaskFileError as error:
        known = [*error.problems, *also]
        # a task file with errors still names a model and rows, whose problems the user wants in the same list
        if error.rest is not None:
            reads_rows = error.are_rows_readable and are_rows_local(error.rest)
            if find_local_model(error.rest.model_name_or_path) is not None:
                read_inputs(error.rest, also=known, reads_rows=reads_rows)
            known += _missing_model(error.rest, known)
            if reads_rows:
                check_rows(error.rest, known)
        raise InputError(in_file_order(known)) from None


def _missing_model(task: TaskFile, known: Sequence[Problem]) -> list[Problem]:
    """Return that the model of ``task`` does not exist, unless its name is wrong by what is ``known``."""
    if task.where("model_name_or_path") in [problem.where for problem in known]:
        return []
    try:
        refuse_missing_model(task.model_name_or_path)
    except InputError as error:
        return [task.located(problem) for problem in error.problems]
    return []
