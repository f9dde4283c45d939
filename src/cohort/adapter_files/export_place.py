"""Where an adapter or a merged model may be written: a directory that is new or empty, as it is put there whole."""

from __future__ import annotations

import os
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
    else:
        # what is written takes the place of the directory
        found = _why_it_stays(target)
        hint = f"Name a new directory, such as {target / 'adapter'}." if found else hint
    if found:
        allowed = "a directory that is new, or empty and can be replaced"
        raise InputError(Problem(where=f"-o {target}", found=found, allowed=allowed, hint=hint))


def _why_it_stays(target: Path) -> str:
    """Return why an empty directory cannot be replaced by another one; an empty text where it can."""
    if target.is_symlink():
        return "a link to a directory"
    if target.samefile(Path.cwd()):
        # a shell that stands in it would stand in one that is gone
        return "the working directory"
    if target.is_mount():
        return "a directory on which a file system is mounted"
    if not os.access(target.absolute().parent, os.W_OK):
        return "a directory in one that cannot be written"
    return ""
