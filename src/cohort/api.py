"""Cohort from Python: several tasks on one machine, one after the other, side by side or sharing one base model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InputError, Problem
from cohort.engine.prepare.inputs import read_inputs
from cohort.engine.shared_session import SharedSession
from cohort.engine.train.progress import ProgressWatcher
from cohort.engine.tune import RunOptions, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import enqueue, work_off
from cohort.task_queue.pool import PoolRequest, open_pool
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.submission import submission_of
from cohort.tasks.loading import TaskFile
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["Engine"]

_RUN_TASKS = "Write engine.run(tasks): tasks start in the order of the list, by priority on several GPUs."


class Engine:
    """Runs tasks on this machine."""

    def __init__(self, *, total_gpus: int | str = "auto", strategy: object = None) -> None:
        """Choose the machine's share.

        Args:
            total_gpus: GPUs to use; "auto": one if there is one; 0: the CPU. With several, each task gets one GPU, and
                tasks run side by side.
            strategy: Removed; any value is an error.

        Raises:
            InputError: an argument is wrong.
        """
        problems = []
        if strategy is not None:
            problems.append(_removed("Engine: strategy", strategy, hint="Leave strategy out: each task uses one GPU."))
        # True is an int in Python, and no number of GPUs
        is_count = isinstance(total_gpus, int) and not isinstance(total_gpus, bool) and total_gpus >= 0
        if not is_count and total_gpus != "auto":
            problems.append(
                Problem(
                    where="Engine: total_gpus",
                    found=f"{total_gpus!r}",
                    allowed="'auto', or a whole number of at least 0 (0: the CPU)",
                    hint="Leave total_gpus out, or write 1.",
                )
            )
        if problems:
            raise InputError(problems)
        self._total_gpus = total_gpus

    def __getattr__(self, name: str) -> NoReturn:
        # scripts for earlier versions call schedule() before run(), so they meet its absence first
        hint = f". {_RUN_TASKS}" if name == "schedule" else ""
        raise AttributeError(f"Engine has no attribute {name!r}{hint}")

    def run(
        self,
        tasks: Sequence[Task],
        schedule: object = None,
        early_exit: EarlyExitSettings | None = None,
        *,
        run_directory: str | os.PathLike[str] | None = None,
        watcher: ProgressWatcher | None = None,
        options: RunOptions | None = None,
        clock: Clock | None = None,
    ) -> list[TaskResult]:
        """Tune every task and return one result each, in the order of ``tasks``.

        All tasks are checked, models and rows included, before the first one starts.

        Args:
            tasks: What to tune.
            schedule: Removed; any value but None is an error.
            early_exit: For the tasks that have no ``early_exit`` of their own.
            run_directory: One task's run directory, or the parent of several, each by its name;
                ``runs/NAME`` when None.
            watcher: Receives progress.
            options: How runs are carried out.
            clock: Measures the runs' time.

        Raises:
            InputError: anything is wrong with any of the tasks.
            TasksFailedError: some of several tasks failed; it carries the results of the others.
            CohortError: the only task failed.
            KeyboardInterrupt: interrupted, with everything saved; :func:`cohort.resume` continues a run.
        """
        if schedule is not None:
            raise InputError(_removed("Engine.run: schedule", schedule, hint=_RUN_TASKS))
        _require_names(tasks)
        # the name is also the run directory's, so that two of one name would write into each other's run
        files = {task.name: self._file_of(task, early_exit) for task in tasks}
        parent = Path("runs") if run_directory is None else Path(run_directory)
        alone = len(tasks) == 1 and run_directory is not None
        directories = {name: parent if alone else parent / name for name in files}
        if len(tasks) == 1 and self._has_several_gpus:
            # a queue checks this itself; alone, the task would train on what there is without a word
            _require_gpus(int(self._total_gpus))
        _require_inputs(files, directories)
        if self._has_several_gpus and len(tasks) > 1:
            # a queue, with its log and its plan, in the parent of the run directories: `cohort status` can follow it
            failures = _run_as_queue(
                files, parent, num_gpus=int(self._total_gpus), watcher=watcher, options=options, clock=clock
            )
            return _results_of(tasks, directories, failures)
        # a failed task does not keep the others from their results
        failures = {}
        for name, file in files.items():
            try:
                tune(file, directories[name], watcher=watcher, options=options, clock=clock)
            except CohortError as error:
                if len(tasks) == 1:
                    raise
                failures[name] = error
        return _results_of(tasks, directories, failures)

    def session(self, *, options: RunOptions | None = None, clock: Clock | None = None) -> SharedSession:
        """Return a session in which tasks share one base model and train at the same time, high priority first.

        It uses one GPU even if the engine has several. Submit tasks with ``submit``, from any thread and also
        during ``run``. The arguments are those of :meth:`run`.
        """
        # one executor has one device
        num_gpus = min(self._total_gpus, 1) if isinstance(self._total_gpus, int) else None
        return SharedSession(options=options, clock=clock, num_gpus=num_gpus)

    @property
    def _has_several_gpus(self) -> bool:
        return isinstance(self._total_gpus, int) and self._total_gpus > 1

    def _file_of(self, task: Task, early_exit: EarlyExitSettings | None) -> TaskFile:
        """Return the task as it runs here: with the engine's GPUs, and early exits where it sets none."""
        file = task.file if early_exit is None else task.with_early_exit(early_exit)
        if file.num_gpus == "auto":
            # on several GPUs the queue gives each task one
            num_gpus = "auto" if self._has_several_gpus else self._total_gpus
            return file.model_copy(update={"num_gpus": num_gpus})
        if isinstance(self._total_gpus, int) and file.num_gpus > self._total_gpus:
            raise InputError(
                Problem(
                    where=file.where("num_gpus"),
                    found=str(file.num_gpus),
                    allowed=f"at most {self._total_gpus}, the engine's total_gpus",
                    hint="Leave num_gpus out, or give the engine more.",
                )
            )
        return file


class _Notes:
    """Passes a queue's lines on to the watcher of a run; a table of trials has no place for several tasks."""

    def __init__(self, watcher: ProgressWatcher | None) -> None:
        self._watcher = watcher

    def update(self, progress: QueueProgress) -> None: ...

    def note(self, text: str) -> None:
        if self._watcher is not None:
            self._watcher.note(text)


def _run_as_queue(
    files: Mapping[str, TaskFile],
    directory: Path,
    *,
    num_gpus: int,
    watcher: ProgressWatcher | None,
    options: RunOptions | None,
    clock: Clock | None,
) -> dict[str, CohortError]:
    """Tune checked tasks on ``num_gpus`` GPUs, one on each; return what went wrong, by task name.

    Raises:
        InputError: there are fewer GPUs, or a task fits none.
        KeyboardInterrupt: interrupted, with everything saved; ``cohort resume DIRECTORY`` continues.
    """
    clock = clock or SystemClock()
    pool, hardware = open_pool(PoolRequest(gpus=num_gpus), directory)
    expect = ExpectedTime(directory, hardware)
    enqueue([submission_of(name, file, clock=clock) for name, file in files.items()], directory, expect=expect)
    settings = DispatcherSettings(options=options or RunOptions())
    tasks = work_off(directory, pool, expect=expect, settings=settings, watcher=_Notes(watcher), clock=clock)
    return {
        task.name: CohortError(f"{task.state.value}: {task.reason}")
        for task in tasks
        # the directory may hold a queue of earlier calls, whose tasks have their own results
        if task.name in files and task.state is not TaskState.DONE
    }


def _results_of(
    tasks: Sequence[Task], directories: Mapping[str, Path], failures: Mapping[str, CohortError]
) -> list[TaskResult]:
    """Return the results in the order of ``tasks``.

    Raises:
        TasksFailedError: there are failures.
    """
    results = {name: read_task_result(path, name=name) for name, path in directories.items() if name not in failures}
    if failures:
        raise TasksFailedError(results=results, failures=failures)
    return [results[task.name] for task in tasks]


def _removed(where: str, value: object, *, hint: str) -> Problem:
    return Problem(where=where, found=f"{value!r}", allowed="nothing: it was removed, as it changed nothing", hint=hint)


def _require_names(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise InputError(
            Problem(where="tasks", found="an empty list", allowed="at least one task", hint="Give a cohort.Task.")
        )
    problems = [
        Problem(
            where="tasks",
            found=f"two tasks with the name {name!r}",
            allowed="each name once: it is the name of the run directory",
            hint="Give them names: cohort.Task(name=..., ...).",
        )
        for name, count in Counter(task.name for task in tasks).items()
        if count > 1
    ]
    if problems:
        raise InputError(problems)


def _require_inputs(files: Mapping[str, TaskFile], directories: Mapping[str, Path]) -> None:
    """Check all tasks before the first one starts, so that no mistake shows up after hours."""
    problems: list[Problem] = []
    for name, file in files.items():
        occupied = RunDirectory.find_problem(directories[name])
        # rows and configurations only: weights are loaded when the task starts
        try:
            read_inputs(file, also=() if occupied is None else (occupied,))
        except InputError as error:
            several = len(files) > 1
            problems += [replace(p, where=p.where.in_file(name)) if several else p for p in error.problems]
    if problems:
        raise InputError(problems)


def _require_gpus(count: int) -> None:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count > there:
        raise InputError(
            Problem(
                where="Engine: total_gpus",
                found=f"{count}, but torch can use {there or 'none'} here",
                allowed=f"at most {there}",
                hint=f"Write total_gpus={there}." if there else "Write total_gpus=0 for the CPU.",
            )
        )
