"""A run directory that was copied while a process was writing to it: the copy goes on from its last whole checkpoint.

Files of a copy are from different moments. State files and manifests are written once and carry checksums; the database
is written all the time, so that a plain copy of it may be torn without showing it. Each checkpoint has its own copy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cohort.checkpoints.checkpoints import Manifest
from cohort.core.errors import RunStateError
from cohort.runs.database_copies import is_good_copy, replace_database
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import RunPlaces
from cohort.runs.facts import RunFacts, RunState
from cohort.tasks.task_file import TaskFile

__all__ = ["places_now", "settle_copy"]


def places_now(directory: RunDirectory, task: TaskFile) -> RunPlaces:
    """Return where a run and its base model are, and which file the database is."""
    return RunPlaces(
        run_directory=str(directory.root.resolve()),
        base_model=task.model_name_or_path,
        database_file=_database_file(directory),
    )


def _database_file(directory: RunDirectory) -> tuple[str, int, int]:
    # inode and device as well as the path: a copy may be moved to the place of the original
    found = directory.database.stat()
    return str(directory.database.resolve()), found.st_dev, found.st_ino


def settle_copy(directory: RunDirectory, facts: RunFacts) -> str | None:
    """Replace the database by that of the last whole checkpoint if this is a copy of a run that was training.

    Call it with the lock held and the database closed.

    Returns:
        What was done, in one line; None if nothing was necessary.
    """
    before = facts.places.database_file
    if before is None or facts.state is not RunState.RUNNING or before == _database_file(directory):
        return None
    # newest first; a copy may lack the files of a checkpoint that was made while it was copied
    for copy in sorted(directory.checkpoints.glob("[0-9]*.db"), reverse=True):
        if is_good_copy(copy) and _is_whole(directory, copy.with_suffix(".json")):
            replace_database(directory, copy)
            return f"this run was copied while it was running; continuing from {copy.with_suffix('.json').name}"
    return None


def _is_whole(directory: RunDirectory, manifest: Path) -> bool:
    try:
        files = Manifest.from_bytes(manifest.read_bytes()).files
        return all(
            hashlib.sha256((directory.root / path).read_bytes()).hexdigest() == checksum
            for path, checksum in files.items()
        )
    except (OSError, RunStateError):
        return False
