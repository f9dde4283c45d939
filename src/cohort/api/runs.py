"""Runs from Python, without an engine of one's own: tune, continue, look at.

A run is looked at while it trains, and after that:

>>> import cohort
>>> result = cohort.load("runs/first")
>>> result.state, len(result.trials)
('done', 2)

To resume one that is done trains nothing; of one that was stopped, the rest:

>>> cohort.resume("runs/first", progress=False).best_trial == result.best_trial
True

Where there is no run, the error says so:

>>> cohort.load("runs/second")
Traceback (most recent call last):
cohort.core.errors.InputError: ...runs/second...
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from cohort.api.engine import (
    Engine,
    OnEvaluation,
    OnStep,
    OnTrialEnd,
    RunKeywords,
    elsewhere_of_load,
    elsewhere_of_resume,
    elsewhere_of_run,
)
from cohort.api.task_checks import path_of, require_call, said_in_python
from cohort.api.watchers import watching
from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.process.interrupts import interrupting
from cohort.engine import tune as engine_tune
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import RunOptions
from cohort.runs.directory import RunDirectory
from cohort.runs.results.task_result import TaskResult, read_task_result
from cohort.tasks.loading import TaskFile
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["load", "load_run", "resume", "run", "tune"]


F = TypeVar("F", bound=Callable[..., object])


def _takes_what_engine_run_takes(function: F) -> F:
    """Give ``run`` the arguments of :meth:`Engine.run` by name, but for its clock: they are declared there alone."""
    own, theirs = inspect.signature(function), inspect.signature(Engine.run)
    named = [
        entry.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, entry in theirs.parameters.items()
        if name not in ("self", "tasks", "clock")
    ]
    parameters = [own.parameters["tasks"], own.parameters["total_gpus"], *named]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


@overload
def run(
    tasks: Task,
    *,
    total_gpus: int | str = "auto",
    early_exit: EarlyExitSettings | None = None,
    **keywords: Unpack[RunKeywords],
) -> TaskResult: ...


@overload
def run(
    tasks: Sequence[Task],
    *,
    total_gpus: int | str = "auto",
    early_exit: EarlyExitSettings | None = None,
    **keywords: Unpack[RunKeywords],
) -> list[TaskResult]: ...


@checks_arguments("run", elsewhere=elsewhere_of_run)
@_takes_what_engine_run_takes
def run(
    tasks: Task | Sequence[Task], *, total_gpus: int | str = "auto", **keywords: Any
) -> TaskResult | list[TaskResult]:
    """Tune one task or several and return a result each: one for a task, a list in their order for a list.

    All tasks are checked, models and rows included, before the first one starts. Calling it again with the same task
    continues its run, or returns the result if it is done.

    Args:
        tasks: What to tune.
        total_gpus: GPUs to use; "auto": one if there is one; 0: the CPU. Several tasks run side by side, one on each
            GPU; a task that runs alone has as many as its ``num_gpus`` says.
        early_exit: For the tasks that have no ``early_exit`` of their own.
        run_directory: One task's run directory, or the parent of several, each by its name;
            ``runs/NAME`` when None.
        on_existing: What to do with a run that the directory holds already: ``resume`` continues it, or returns its
            result if it is done, provided that task, rows and base model are the same; ``overwrite`` removes it;
            ``error`` refuses.
        on_step, on_evaluation, on_trial_end: Functions that are called between two steps with a
            :class:`cohort.StepReport`, :class:`cohort.EvaluationReport` or :class:`cohort.TrialEndReport`, whose
            methods change trials or stop the run. What they ask is recorded, and replayed when the run is resumed.
        study: An ``optuna.Study`` for one task: a sampler that learns (tpe) begins with its results, and each trial
            that ends is added to it.
        progress: Whether to show a progress bar; None: in notebooks and on terminals.
        watcher: Receives progress.
        options: How runs are carried out, as a :class:`cohort.RunOptions`.

    Raises:
        InputError: anything is wrong with any of the tasks.
        TasksFailedError: some of several tasks failed; it carries the results of the others.
        CallbackError: a callback of the only task raised an error; the run is saved.
        CohortError: the only task failed.
        KeyboardInterrupt: interrupted, with everything saved; calling it again continues.

    Example:
        ```python
        import cohort

        task = cohort.Task(
            model="model",
            dataset="train.jsonl",
            search_space={"learning_rate": [2e-4, 1e-3]},
            training={"max_steps": 4},
        )
        result = cohort.run(task, run_directory="runs/first")
        print(result.adapter_directory, result.metrics["loss"])
        ```
    """
    return Engine(total_gpus=total_gpus).run(tasks, **keywords)


@checks_arguments("tune", elsewhere=elsewhere_of_resume)
@interrupting()
def tune(
    task: TaskFile,
    run_directory: str | os.PathLike[str],
    *,
    progress: bool | None = None,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
) -> TaskResult:
    """Tune a task that :func:`cohort.load_task` read from a file, as ``cohort tune`` does, and return its result.

    Args:
        task: The task.
        run_directory: New or empty.
        progress: Whether to show a progress bar; None: in notebooks and on terminals.
        watcher: Receives progress.
        options: How the run is carried out.
        clock: Measures the run's time.

    Raises:
        InputError: the task, its data, its model or the directory is wrong.
        StorageFullError: the disk is full; :func:`cohort.resume` goes on once there is room.
        KeyboardInterrupt: interrupted, with everything saved.
    """
    given: object = task
    if not isinstance(given, TaskFile):
        shown = f"a value of type {type(task).__name__}"
        hint = "Write cohort.run(task) for a cohort.Task, or cohort.load_task(PATH) for a file."
        raise InputError(Problem(where="tune: task", found=shown, allowed="what cohort.load_task returns", hint=hint))
    require_call(progress=progress, watcher=watcher, options=options)
    directory = path_of(run_directory, where="tune: run_directory")
    with watching(progress=progress, watcher=watcher) as shown_by:
        try:
            engine_tune.tune(task, directory, watcher=shown_by, options=options, clock=clock)
        except InputError as error:
            occupied, found = RunDirectory.find_problem(directory), list(error.problems)
            if occupied in found:
                found[found.index(occupied)] = said_in_python(occupied, RunDirectory(directory))
            raise InputError(found) from None
    return read_task_result(directory)


@checks_arguments("resume", elsewhere=elsewhere_of_resume)
@interrupting()
def resume(
    run_directory: str | os.PathLike[str],
    *,
    progress: bool | None = None,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_trial_end: OnTrialEnd | None = None,
) -> TaskResult:
    """Continue a run after any kind of stop and return its result; of a finished run, only return it.

    Args:
        run_directory: The run's directory, or a copy of it.
        progress: Whether to show a progress bar; None: in notebooks and on terminals.
        watcher: Receives progress.
        options: How the run is carried out.
        clock: Measures the run's time.
        places: Command-line arguments that say where its inputs are now, e.g. ``["--dataset.train", "rows.jsonl"]``.
        on_step, on_evaluation, on_trial_end: As for :func:`cohort.run`; of what happened before the last
            checkpoint they are not told again.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process holds the run, or no state is left to continue from.
        KeyboardInterrupt: interrupted again, with everything saved.

    Example:
        ```python
        import cohort

        result = cohort.resume("runs/mine")
        print(result.state, result.metrics)
        ```
    """
    callbacks = Callbacks(on_step=on_step, on_evaluation=on_evaluation, on_trial_end=on_trial_end)
    require_call(progress=progress, watcher=watcher, options=options)
    directory = path_of(run_directory, where="resume: run_directory")
    with watching(progress=progress, watcher=watcher) as shown:
        engine_tune.resume(directory, watcher=shown, options=options, clock=clock, places=places, callbacks=callbacks)
    return read_task_result(directory)


@checks_arguments("load", elsewhere=elsewhere_of_load)
def load(run_directory: str | os.PathLike[str]) -> TaskResult:
    """Return the result of a run as far as it is: finished, stopped, or running in another process.

    Raises:
        InputError: there is no run in ``run_directory``.
        RunStateError: its database cannot be read.

    Example:
        ```python
        import cohort

        result = cohort.load("runs/mine")
        print(result.state, result.best_trial["trial"])
        print(result.trials_frame()[["trial", "learning_rate", "eval_loss"]])
        ```
    """
    return read_task_result(path_of(run_directory, where="load: run_directory"))


@checks_arguments("load_run", elsewhere=elsewhere_of_load)
def load_run(run_directory: str | os.PathLike[str]) -> TaskResult:
    """Return the same as :func:`cohort.load`: trials, curves, metrics and the best adapter's directory of a run.

    Raises:
        InputError: there is no run in ``run_directory``.
        RunStateError: its database cannot be read.

    Example:
        ```python
        import cohort

        result = cohort.load_run("runs/mine")
        print(result.adapter_directory, result.best_trial["trial"])
        curves = result.curves_frame()
        print(curves.pivot_table(index="step", columns="trial", values="eval_loss"))
        ```
    """
    return read_task_result(path_of(run_directory, where="load_run: run_directory"))
