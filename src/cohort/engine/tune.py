"""The main job: a task in, the best adapter out; and its continuation after any kind of stop.

Both are a session of one task. What a kill leaves in the run directory says where to continue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cohort.core.clock import Clock
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.session import Session
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.tasks.task_file import TaskFile

__all__ = ["RunOptions", "resume", "tune"]


def tune(
    task: TaskFile,
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    callbacks: Callbacks | None = None,
) -> None:
    """Train all trials of ``task``, stop the weak ones early, and leave the best adapter in ``run_directory/best``.

    Everything about the task is read and checked before the run directory is made. ``callbacks`` are called between two
    steps.

    Raises:
        InputError: the task, its data, its model or the output directory is wrong.
        StorageFullError: the disk is full; :func:`resume` goes on once there is room.
        KeyboardInterrupt: interrupted (Ctrl-C, SIGTERM or SIGHUP) at a step boundary, with everything saved.
    """
    with _session_of_one(options=options, clock=clock) as session:
        session.submit(task, run_directory, watcher=watcher, callbacks=callbacks)


def resume(
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
    callbacks: Callbacks | None = None,
) -> None:
    """Continue a run from its last checkpoint; for a finished one, only write results that are missing.

    Args:
        run_directory: The run's directory, or a copy of it, even one that was made while the run was training.
        watcher: Receives progress.
        options: How the run is carried out.
        clock: Measures the run's time.
        places: Command-line arguments that say where its inputs are now, e.g. ``["--dataset.train", "rows.jsonl"]``;
            without them they are looked for where they were, and at the same place relative to the run directory.
        callbacks: Called between two steps.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process holds the run, or no state is left to continue from.
        KeyboardInterrupt: interrupted again, with everything saved.
    """
    with _session_of_one(options=options, clock=clock) as session:
        session.resume(run_directory, watcher=watcher, callbacks=callbacks, places=places)


@contextlib.contextmanager
def _session_of_one(*, options: RunOptions | None, clock: Clock | None) -> Iterator[Session]:
    """Yield a session that takes in one task, which trains when the block ends; an error of the task is raised."""
    with contextlib.closing(Session(options=options, clock=clock, is_shared=False)) as session:
        yield session
        for error in session.train():
            raise error
