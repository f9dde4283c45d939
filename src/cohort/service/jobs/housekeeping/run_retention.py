"""Removes the run directories of a node's jobs once their time is over."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path

from cohort.core.durable_files import is_older
from cohort.store.jobs.ended_jobs import ended_jobs, jobs_of_removed_projects
from cohort.store.store import Store

__all__ = ["remove_old_runs"]

_log = logging.getLogger(__name__)
_GONE = ".removed-"
_ASKED_AT_ONCE = 500
# a node lets go of a job that is cancelled with its project within a turn
_REMOVED_SECONDS = 3600.0


def remove_old_runs(store: Store, *, runs: Path, queue: Path, seconds: float | None) -> int:
    """Remove the runs of jobs that ended ``seconds`` ago or earlier, and return how many there were.

    Those of removed projects go in any case: they have rows of the tenant, and adapters. A directory whose job the
    database does not know, as it was forgotten, goes when nothing has been written to it for as long.

    Args:
        runs: The node's run directories, by job.
        queue: The node's queue, which has links to them.
        seconds: None: for ever.
    """
    if not runs.is_dir():
        return 0
    # killed while it removed one
    for left in runs.glob(f"{_GONE}*"):
        shutil.rmtree(left, ignore_errors=True)
    age = math.inf if seconds is None else seconds
    found = sorted(entry for entry in runs.iterdir() if entry.is_dir() and not entry.name.startswith(_GONE))
    count = 0
    for first in range(0, len(found), _ASKED_AT_ONCE):
        asked = found[first : first + _ASKED_AT_ONCE]
        names = [entry.name for entry in asked]
        over, known = ended_jobs(store.database, names, seconds_ago=age)
        over |= jobs_of_removed_projects(store.database, names, seconds_ago=_REMOVED_SECONDS)
        for entry in asked:
            try:
                if entry.name in over or (entry.name not in known and is_older(entry, age)):
                    _remove(entry, queue / entry.name)
                    count += 1
            except OSError as error:
                # this one is tried again at the next look, and keeps none of the others
                _log.warning("the run directory %s was not removed: %s", entry.name, error)
    return count


def _remove(directory: Path, link: Path) -> None:
    if link.is_symlink():
        link.unlink()
    # out of sight at once: no reader finds half a run
    hidden = directory.with_name(_GONE + directory.name)
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
