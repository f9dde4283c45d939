"""The main job: a task in, the best adapter out; and its continuation after any kind of stop.

Both are a session of one task. What a kill leaves in the run directory says where to continue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.run_resume import ready_to_resume
from cohort.engine.run_start import begun_run, new_directory, prepare_task
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.task_session import TaskSession
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.preparation import Preparation
from cohort.runs.directory import RunDirectory
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
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    occupied = RunDirectory.find_problem(run_directory)
    task = task.with_rows_in(RunDirectory(Path(run_directory)).rows)
    # before the directory is made: a mistake leaves nothing behind
    preparation = prepare_task(
        task,
        watcher=watcher,
        clock=clock,
        request=SizeRequest(token_budget=options.token_budget, num_ranks=options.num_ranks, launched=options.launched),
        also=() if occupied is None else (occupied,),
    )
    with new_directory(run_directory, task) as directory:
        _train_new(preparation, directory, watcher=watcher, options=options, clock=clock, callbacks=callbacks)


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
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    ready = ready_to_resume(run_directory, watcher=watcher, options=options, clock=clock, places=places)
    if ready is None:
        return
    with (
        ready,
        # before the record: if the bank does not fit, a resume may choose other sizes
        contextlib.closing(TaskSession(ready.preparation, clock=clock)) as session,
        ready.opened(watcher=watcher, options=options, clock=clock, callbacks=callbacks) as (run, checkpoint),
    ):
        session.join(ready.preparation, run, checkpoint=checkpoint)
        session.run()


def _train_new(
    preparation: Preparation,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    callbacks: Callbacks | None,
) -> None:
    """Carry out a run whose locked directory holds nothing but its task."""
    # before the record: if the bank does not fit, a resume may choose other sizes
    with contextlib.closing(TaskSession(preparation, clock=clock)) as session:
        session.draw_ahead(preparation)
        with begun_run(
            preparation, directory, watcher=watcher, options=options, clock=clock, callbacks=callbacks
        ) as run:
            session.join(preparation, run)
            session.run()
