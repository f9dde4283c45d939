"""When a queue was last worked on, by its clock: a killed dispatcher wrote that seconds before it ended at best."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cohort.runs.directory import RunDirectory
from cohort.task_queue.records import QueuedTask, QueueFacts, TaskState

__all__ = ["last_seen_seconds"]


def last_seen_seconds(facts: QueueFacts, tasks: Iterable[QueuedTask], *, directory: Path) -> float | None:
    """Return the queue's seconds when a dispatcher, or a worker of a task that it left running, was last there.

    A dispatcher that plans writes nothing for a while, and its workers, which end with it, go on recording steps.

    Args:
        directory: The queue's.

    Returns:
        None before the first dispatcher.
    """
    last, began_at = facts.last_dispatcher_seconds, facts.began_at
    if last is None or began_at is None:
        return last
    for task in tasks:
        if task.state is TaskState.RUNNING:
            database = RunDirectory(directory / task.name).database
            for file in (database, database.with_name(f"{database.name}-wal")):
                # SQLite removes a log when its last writer leaves, at any moment
                with suppress(FileNotFoundError):
                    found = file.stat()
                    # who only reads a database leaves an empty log behind
                    if found.st_size > 0:
                        written_at = datetime.fromtimestamp(found.st_mtime, UTC)
                        last = max(last, (written_at - began_at).total_seconds())
    return last
