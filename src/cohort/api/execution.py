"""How checked tasks are carried out: one after the other in this process, or as a queue on several GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cohort.api.watchers import watching
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.process.interrupts import interrupting
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.existing_run import places_of, remove_run
from cohort.engine.run_start import write_given_rows
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.results.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import enqueue, work_off
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.submission import submission_of
from cohort.task_queue.workers.pool import PoolRequest, most_slots_of_node, open_pool
from cohort.tasks.loading import TaskFile

__all__ = ["RunCall", "results_of", "run_as_queue", "run_in_turn"]


@dataclass(frozen=True, kw_only=True)
class RunCall:
    """What a call says besides its tasks: how they are carried out and shown.

    Attributes:
        progress: Whether to show a bar; None: where a person looks on.
        watcher: The caller's own.
    """

    callbacks: Callbacks
    progress: bool | None
    watcher: ProgressWatcher | None
    options: RunOptions | None
    clock: Clock | None


@interrupting()
def run_in_turn(
    files: Mapping[str, TaskFile], directories: Mapping[str, Path], *, resumed: Collection[str], call: RunCall
) -> dict[str, CohortError]:
    """Tune checked tasks one after the other; return what went wrong, by task name.

    Args:
        resumed: Tasks whose directory holds their run; of the others, a run that is there is removed.

    Raises:
        CohortError: the only task failed.
        KeyboardInterrupt: interrupted, with everything saved.
    """
    failures: dict[str, CohortError] = {}
    options, clock, callbacks = call.options, call.clock, call.callbacks
    for name, file in files.items():
        directory, is_alone = RunDirectory(directories[name]), len(files) == 1
        shown_name = "" if is_alone else name
        try:
            with watching(progress=call.progress, name=shown_name, watcher=call.watcher) as shown:
                if name in resumed:
                    places = places_of(file, directory)
                    resume(
                        directory.root, watcher=shown, options=options, clock=clock, places=places, callbacks=callbacks
                    )
                    continue
                if directory.holds_run():
                    remove_run(directory)
                tune(file, directory.root, watcher=shown, options=options, clock=clock, callbacks=callbacks)
        except CohortError as error:
            # a failed task does not keep the others from their results
            if is_alone:
                raise
            failures[name] = error
    return failures


class _Notes:
    """Passes a queue's lines on to the watcher of a run; a table of trials has no place for several tasks."""

    def __init__(self, watcher: ProgressWatcher) -> None:
        self._watcher = watcher

    def update(self, progress: QueueProgress) -> None: ...

    def note(self, text: str) -> None:
        self._watcher.note(text)


@interrupting()
def run_as_queue(
    files: Mapping[str, TaskFile],
    directory: Path,
    *,
    num_gpus: int,
    call: RunCall,
) -> dict[str, CohortError]:
    """Tune checked tasks on ``num_gpus`` GPUs, each on as many as it asks for; return what went wrong, by task name.

    Raises:
        InputError: there are fewer GPUs, a task fits none, or there are callbacks.
        KeyboardInterrupt: interrupted, with everything saved; ``cohort resume DIRECTORY`` continues.
    """
    _require_no_callbacks(call.callbacks)
    clock = call.clock or SystemClock()
    pool, hardware = open_pool(PoolRequest(gpus=num_gpus), directory)
    # other processes train the tasks: rows that were given from Python have to lie in files
    rows = {name: directory / "rows" / name for name in files}
    files = {name: file.with_rows_in(rows[name]) for name, file in files.items()}
    for name, file in files.items():
        write_given_rows(file, rows[name])
    expect = ExpectedTime(directory, hardware, slots_of_node=most_slots_of_node(pool))
    enqueue([submission_of(name, file, clock=clock) for name, file in files.items()], directory, expect=expect)
    settings = DispatcherSettings(options=call.options or RunOptions())
    with watching(progress=False, watcher=call.watcher) as shown:
        tasks = work_off(
            directory, pool, expect=expect, work=expect.work, settings=settings, watcher=_Notes(shown), clock=clock
        )
    return {
        task.name: CohortError(f"{task.state.value}: {task.reason}")
        for task in tasks
        # the directory may hold a queue of earlier calls, whose tasks have their own results
        if task.name in files and task.state is not TaskState.DONE
    }


def results_of(
    names: Iterable[str], directories: Mapping[str, Path], failures: Mapping[str, CohortError]
) -> list[TaskResult]:
    """Return the results in the order of ``names``.

    Raises:
        TasksFailedError: there are failures.
    """
    results = {name: read_task_result(path, name=name) for name, path in directories.items() if name not in failures}
    if failures:
        raise TasksFailedError(results=results, failures=failures)
    return [results[name] for name in names]


def _require_no_callbacks(callbacks: Callbacks) -> None:
    if callbacks:
        names = ", ".join(name for name, value in vars(callbacks).items() if value is not None)
        raise InputError(
            Problem(
                where="Engine.run",
                found=f"{names} for several tasks on several GPUs",
                allowed="callbacks for tasks that train in this process: there, each GPU has a process of its own, in "
                "which a function of this one cannot be called",
                hint="Run the tasks one after the other, with total_gpus=1, or change trials with `cohort trials`.",
            )
        )
