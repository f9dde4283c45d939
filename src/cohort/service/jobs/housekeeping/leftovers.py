"""Removes what clients sent and a node needs no longer: rows of jobs that have ended, and files of killed requests."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cohort.core.durable_files import is_older
from cohort.service.jobs.job_folder import JobFolder
from cohort.store.jobs.ended_jobs import ended_jobs
from cohort.store.store import Store
from cohort.task_queue.store import find_queue, open_queue

__all__ = ["forget_ended_tasks", "remove_folders_of_ended_jobs", "remove_untouched"]

_log = logging.getLogger(__name__)
_ASKED_AT_ONCE = 500
# a node that has a job which is cancelled lets go of it within a turn
_ENDED_SECONDS = 3600.0
_UNTOUCHED_SECONDS = 24 * 3600.0


def remove_folders_of_ended_jobs(store: Store, folders: Path) -> int:
    """Remove what a node keeps of jobs that ended an hour ago, and return how many there were.

    Of a job that the database does not know it goes after a day. A node removes it itself when a job ends that it has.
    Others end elsewhere: cancelled while they were paused, trained by another node, or as this one was killed.

    Args:
        folders: Where each job of the node has its folder.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    found, count = JobFolder.all_in(folders), 0
    for first in range(0, len(found), _ASKED_AT_ONCE):
        asked = found[first : first + _ASKED_AT_ONCE]
        over, known = ended_jobs(store.database, [folder.path.name for folder in asked], seconds_ago=_ENDED_SECONDS)
        for folder in asked:
            name = folder.path.name
            # of one with a claim the runner still tells what it has used
            if folder.claim is not None:
                continue
            # one that is gone was removed by its job's end
            with suppress(FileNotFoundError):
                if name in over or (name not in known and is_older(folder.path, _UNTOUCHED_SECONDS)):
                    folder.remove()
                    count += 1
    return count


def forget_ended_tasks(store: Store, queue: Path) -> None:
    """Remove the tasks of jobs that ended an hour ago, or that the database does not know, from a node's queue.

    The runner reads the whole queue at each turn, and a task has what its client wrote.

    Args:
        queue: The queue's directory.

    Raises:
        StoreUnavailable: the database cannot be reached.
        RunStateError: the queue cannot be read or written.
    """
    if not find_queue(queue):
        return
    with open_queue(queue) as opened:
        final = [task.name for task in opened.tasks() if task.state.is_final]
        for first in range(0, len(final), _ASKED_AT_ONCE):
            asked = final[first : first + _ASKED_AT_ONCE]
            over, known = ended_jobs(store.database, asked, seconds_ago=_ENDED_SECONDS)
            opened.forget(over | (set(asked) - known))


def remove_untouched(folders: Iterable[Path]) -> None:
    """Remove what lies in ``folders`` and was not written for a day: uploads, plans and archives of killed servers."""
    for folder in folders:
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                if not is_older(entry, _UNTOUCHED_SECONDS):
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
            except FileNotFoundError:
                # its request has ended
                continue
            except OSError as error:
                # it keeps none of the others
                _log.warning("%s was not removed: %s", entry, error)
