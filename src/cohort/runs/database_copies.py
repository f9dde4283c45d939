"""Copies of a run's database, one with each checkpoint, and going back to one when the database is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cohort.core.durable_files import atomic_file, write_bytes
from cohort.core.errors import RunStateError, StorageFullError
from cohort.runs.database import database_errors_named, open_database
from cohort.runs.directory import RunDirectory

__all__ = ["copy_database", "is_good_copy", "repair_database", "replace_database"]

# SQLite keeps these files next to a database; they fit only the database that they were made for
_COMPANIONS = ("-wal", "-shm")


def copy_database(directory: RunDirectory, *, position: int) -> Path:
    """Copy the database as it is now to ``checkpoints/`` and return the copy: one file, whole or not there.

    Raises:
        StorageFullError: the disk is full; earlier copies are untouched.
    """
    target = directory.checkpoints / f"{position:09d}.db"
    with (
        atomic_file(target) as partial,
        database_errors_named(target),
        closing(sqlite3.connect(directory.database, isolation_level=None)) as source,
    ):
        # one file without a write-ahead log, and without a journal of its own that a kill could leave behind
        source.execute("VACUUM INTO ?", (str(partial),))
    return target


def repair_database(directory: RunDirectory) -> str | None:
    """Replace a database that cannot be used by its newest good copy; call it with the lock held.

    Returns:
        What was wrong and what was done, in one line; None when the database is good.

    Raises:
        StorageFullError: the disk is full, which is no damage.
        RunStateError: it is damaged and no good copy is left; or it is locked, read-only or out of reach.
    """
    database = directory.database
    _finish_replacement(directory)
    try:
        open_database(database, read_only=False).close()
        return None
    except RunStateError as error:
        if not _is_damage(error):
            raise
        problem = error
    for copy in sorted(directory.checkpoints.glob("[0-9]*.db"), reverse=True):
        if is_good_copy(copy):
            # kept for inspection: what it holds is not ours to delete
            if database.exists():
                database.replace(database.with_name(f"{database.name}.damaged"))
            replace_database(directory, copy)
            return f"{problem}; its copy {copy.name} from a checkpoint took its place"
    # what was wrong, without the advice to do what was just tried
    words = str(problem).rpartition("; ")[0] or str(problem)
    raise RunStateError(
        f"{words}, and no checkpoint has a good copy of it; nothing was changed, and adapters that are in "
        f"{directory.best} and {directory.root / 'trials'} can be used as they are: start the task again in another "
        "directory"
    ) from problem


def is_good_copy(copy: Path) -> bool:
    """Return whether a copy is whole."""
    try:
        with closing(open_database(copy, read_only=True)) as database:
            return bool(database.one("PRAGMA quick_check(1)") == "ok")
    except (RunStateError, sqlite3.DatabaseError):
        return False


def replace_database(directory: RunDirectory, copy: Path) -> None:
    """Replace the database by ``copy``, without SQLite's files of the old one; call it with the lock held.

    Raises:
        StorageFullError: the disk is full; the database is as it was.
    """
    # The database and its write-ahead log cannot be replaced in one step: without its log the old database is older
    # than any copy, and with the old log the new one is damaged. So the copy is first written whole under a third name.
    # While that file exists, repair_database() does the other steps, at whatever point this process was killed
    write_bytes(_replacement(directory), copy.read_bytes())
    _finish_replacement(directory)


def _replacement(directory: RunDirectory) -> Path:
    return directory.database.with_name(f"{directory.database.name}.replacement")


def _finish_replacement(directory: RunDirectory) -> None:
    """Finish a replacement that was begun, if there is one."""
    replacement = _replacement(directory)
    if not replacement.exists():
        return
    # before the rename: the new database must never be opened with the old log
    for companion in _COMPANIONS:
        Path(f"{directory.database}{companion}").unlink(missing_ok=True)
    replacement.replace(directory.database)


def _is_damage(error: RunStateError) -> bool:
    """Return whether the file is at fault. One that cannot be reached now is whole, and newer than its copies."""
    cause = error.__cause__
    if isinstance(error, StorageFullError):
        return False
    if isinstance(cause, sqlite3.DatabaseError):
        return any(text in str(cause) for text in ("malformed", "not a database"))
    return True
