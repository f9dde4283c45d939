"""A run that has finished and is resumed: its task is checked, and what was lost of its results is written again.

Tables and the report are made from the record alone, so they come back without the rows and the base model. Only a best
adapter that was lost takes the whole preparation of a run.
"""

from __future__ import annotations

from cohort.core.durable_files import write_text
from cohort.engine.resume_checks import require_same_task
from cohort.engine.train.finish import write_tables
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts
from cohort.runs.results.lost_results import lost_results
from cohort.runs.store import RunStore
from cohort.runs.task_of_run import read_task_file
from cohort.tasks.task_file import TaskFile

__all__ = ["restore_results", "restore_task_file"]


def restore_task_file(directory: RunDirectory, facts: RunFacts) -> str | None:
    """Write the task file of a run that lost it; return what was done."""
    if directory.task_file.exists() or facts.task.document is None:
        return None
    task = TaskFile.model_validate(facts.task.document)
    write_text(directory.task_file, task.resolved_yaml())
    return f"{directory.task_file} was missing; it was written again from the run's record"


def restore_results(store: RunStore, directory: RunDirectory, *, watcher: ProgressWatcher) -> None:
    """Write tables and report of a finished run again where one is gone.

    Raises:
        InputError: the task in its directory is no longer what it began with; nothing is written then.
        StorageFullError: the disk is full.
    """
    facts = store.reader.facts()
    if facts.task.document is not None:
        task = read_task_file(directory)
        require_same_task(facts.task.document, task, path=directory.task_file, machine=facts.machine)
    if not (lost := lost_results(directory, facts)):
        return
    watcher.note(f"missing or damaged: {', '.join(lost)}; writing the results again from the run's record")
    # with the best adapter the end of the run does it
    if all((directory.root / name).parent == directory.root for name in lost):
        write_tables(store, directory=directory)
