"""Where an adapter or a merged model may be written: a directory that is new or empty, as it is put there whole."""

from __future__ import annotations

from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.core.unusual_path import unusual_path
from cohort.runs.directory import RunDirectory

__all__ = ["require_place"]


def require_place(target: Path) -> None:
    """Ask whether an export may be put at ``target``, before anything is computed for it.

    Raises:
        InputError: it is a file, holds something, is the working directory, or cannot be written.
    """
    if (unusual_path(target) or not target.exists()) and (unusable := RunDirectory.find_problem(target)) is not None:
        raise InputError(unusable)
    if not target.exists():
        return
    found, hint = "", "Choose another directory, or delete this one."
    if not target.is_dir():
        found = "a file"
    elif any(target.iterdir()):
        # an export replaces nothing: what is there may be the user's, and a run must never look like one to delete
        found = "a directory that is not empty"
        hint = "Choose another directory." if RunDirectory(target).holds_run() else hint
    elif target.samefile(Path.cwd()):
        # what is written takes the place of the directory: a shell that stands in it would stand in one that is gone
        found, hint = "the working directory", f"Name a new directory, such as {target / 'adapter'}."
    if found:
        raise InputError(
            Problem(where=f"-o {target}", found=found, allowed="a directory that is new or empty", hint=hint)
        )
