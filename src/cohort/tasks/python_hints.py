"""Problems of a task given in Python: the hints of task files, in the words of Python."""

from __future__ import annotations

from dataclasses import replace

from cohort.core.errors import Problem
from cohort.core.place import dotted

__all__ = ["in_python"]

_FILES = "a file, a list of files, a directory or a hub id"


def in_python(problem: Problem) -> Problem:
    """Return the problem as a caller from Python needs it, who has no task file and may give rows."""
    hint = problem.hint.replace(
        "relative paths start at the task file", "relative paths start at the working directory"
    )
    if hint == "Write the keys below it, indented.":
        hint = f"Write {dotted(problem.where.key)}={{KEY: VALUE, ...}}, a dict."
    allowed = problem.allowed
    if allowed == _FILES and problem.where.key[:1] == ("dataset",):
        allowed = f"{_FILES}; or rows: a list of dicts, a pandas DataFrame or a datasets.Dataset"
    return replace(problem, hint=hint, allowed=allowed)
