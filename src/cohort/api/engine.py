"""The engine: several tasks on one machine, one after the other, side by side or sharing one base model.

A list of tasks has a list of results, in its order; a run that is done is not trained again:

>>> import cohort
>>> engine = cohort.Engine(total_gpus=0)
>>> rows = {"model": "model", "dataset": "train.jsonl", "num_gpus": 0}
>>> short = {"search_space": {"learning_rate": [1e-3, 1e-2]}, "training": {"max_steps": 2}}
>>> [first] = engine.run([cohort.Task(name="first", **rows, **short)], run_directory="runs/first", progress=False)
>>> first.name
'first'

Tasks of a session share one base model and train at the same time; further ones may be submitted meanwhile:

>>> session = engine.session()
>>> session.submit(cohort.Task(name="small", **rows, **short, lora={"r": 2}), "runs/small")
>>> [result.name for result in session.run()]
['small']

What the machine does not have is refused before anything is read:

>>> cohort.Engine(total_gpus="two")
Traceback (most recent call last):
cohort.core.errors.InputError: ...'two'...
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch

from cohort.api.execution import RunCall, results_of, run_as_queue, run_in_turn
from cohort.api.study import KeptStudy
from cohort.api.task_checks import existing_runs, path_of, require_call, require_tasks
from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.input_values.plain_values import plain_value
from cohort.engine.callbacks.callback_reports import EvaluationReport, StepReport, TrialEndReport
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.session import Session
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import RunOptions
from cohort.runs.results.task_result import TaskResult
from cohort.tasks.loading import TaskFile
from cohort.tasks.task import Task, elsewhere_of_task
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = [
    "Engine",
    "OnEvaluation",
    "OnExisting",
    "OnStep",
    "OnTrialEnd",
    "RunKeywords",
    "elsewhere_of_load",
    "elsewhere_of_resume",
    "elsewhere_of_run",
]

_DIRECTORY_WORDS = ("directory", "dir", "folder", "out", "output", "output_dir", "path", "run_dir", "save_dir")

OnStep = Callable[[StepReport], object]
OnEvaluation = Callable[[EvaluationReport], object]
OnTrialEnd = Callable[[TrialEndReport], object]
OnExisting = Literal["resume", "overwrite", "error"]


class RunKeywords(TypedDict, total=False):
    """What :meth:`Engine.run` and :func:`cohort.run` take by name alone, where it is written once for all overloads."""

    run_directory: str | os.PathLike[str] | None
    on_existing: OnExisting
    on_step: OnStep | None
    on_evaluation: OnEvaluation | None
    on_trial_end: OnTrialEnd | None
    study: Any
    progress: bool | None
    watcher: ProgressWatcher | None
    options: RunOptions | None


def _elsewhere(name: str) -> str | None:
    """Return the hint for an argument that another call takes."""
    if name in ("gpus", "num_gpus"):
        return "Write total_gpus=... for the engine, or num_gpus=... for a Task."
    return "Give it to Engine.run(...)." if name in inspect.signature(Engine.run).parameters else None


def elsewhere_of_load(name: str) -> str | None:
    """Return the hint for another word for the run's directory."""
    return "Write run_directory=..." if name in _DIRECTORY_WORDS else None


def elsewhere_of_resume(name: str) -> str | None:
    """Return the hint for another word for the run's directory, or for progress."""
    if (hint := elsewhere_of_load(name)) is not None:
        return hint
    return "Write progress=True, or progress=False." if name in ("verbose", "disable_tqdm", "show_progress") else None


def elsewhere_of_run(name: str) -> str | None:
    """Return the hint for an argument of ``run`` that is a task's, or what other tools call one."""
    if (hint := elsewhere_of_resume(name)) is not None:
        return hint
    if name in ("overwrite", "overwrite_output_dir"):
        return "Write on_existing='overwrite', which trains again from the start."
    if name in ("resume", "resume_from_checkpoint"):
        return "Remove it: on_existing='resume', the default, continues the run that is there."
    if name in ("gpus", "num_gpus"):
        return "Write total_gpus=... of cohort.run or cohort.Engine, or num_gpus=... for a Task."
    if name in ("callbacks", "callback"):
        return "Write on_step=..., on_evaluation=... or on_trial_end=..., a function each."
    if name in inspect.signature(Task).parameters:
        return f"Give it to the task: cohort.Task({name}=..., ...)."
    hint = elsewhere_of_task(name)
    return f"It belongs to the cohort.Task. {hint}" if hint and hint.startswith("Write") else hint


class Engine:
    """Runs tasks on this machine."""

    @checks_arguments("Engine", elsewhere=_elsewhere)
    def __init__(self, *, total_gpus: int | str = "auto") -> None:
        """Choose the machine's share.

        Args:
            total_gpus: GPUs to use; "auto": one if there is one; 0: the CPU. Several tasks run side by side, one on
                each GPU; a task that runs alone has as many as its ``num_gpus`` says.

        Raises:
            InputError: an argument is wrong.
        """
        problems, total_gpus = [], plain_value(total_gpus)
        # True is an int in Python, and no number of GPUs
        is_count = isinstance(total_gpus, int) and not isinstance(total_gpus, bool) and total_gpus >= 0
        if not is_count and not (isinstance(total_gpus, str) and total_gpus == "auto"):
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

    @overload
    def run(
        self,
        tasks: Task,
        early_exit: EarlyExitSettings | None = None,
        *,
        clock: Clock | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> TaskResult: ...

    @overload
    def run(
        self,
        tasks: Sequence[Task],
        early_exit: EarlyExitSettings | None = None,
        *,
        clock: Clock | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> list[TaskResult]: ...

    @checks_arguments("Engine.run", elsewhere=elsewhere_of_run)
    def run(
        self,
        tasks: Task | Sequence[Task],
        early_exit: EarlyExitSettings | None = None,
        *,
        run_directory: str | os.PathLike[str] | None = None,
        on_existing: OnExisting = "resume",
        on_step: OnStep | None = None,
        on_evaluation: OnEvaluation | None = None,
        on_trial_end: OnTrialEnd | None = None,
        study: Any = None,
        progress: bool | None = None,
        watcher: ProgressWatcher | None = None,
        options: RunOptions | None = None,
        clock: Clock | None = None,
    ) -> TaskResult | list[TaskResult]:
        """Tune one task or several and return a result each: one for a task, a list in their order for a list.

        All tasks are checked, models and rows included, before the first one starts.

        Args:
            tasks: What to tune.
            early_exit, run_directory, on_existing: As for :func:`cohort.run`.
            on_step, on_evaluation, on_trial_end, study: As for :func:`cohort.run`.
            progress, watcher, options: As for :func:`cohort.run`.
            clock: Measures the runs' time.

        Raises:
            InputError: anything is wrong with any of the tasks.
            TasksFailedError: some of several tasks failed; it carries the results of the others.
            CallbackError: a callback of the only task raised an error; the run is saved.
            CohortError: the only task failed.
            KeyboardInterrupt: interrupted, with everything saved; :func:`cohort.resume` continues a run.
        """
        callbacks = Callbacks(on_step=on_step, on_evaluation=on_evaluation, on_trial_end=on_trial_end)
        listed = [tasks] if isinstance(tasks, Task) else tasks
        require_tasks(listed, early_exit=early_exit, on_existing=on_existing)
        require_call(progress=progress, watcher=watcher, options=options)
        # the name is also the run directory's, so that two of one name would write into each other's run
        files = {task.name: self._file_of(task, early_exit) for task in listed}
        parent = Path("runs") if run_directory is None else path_of(run_directory, where="run_directory")
        alone = len(files) == 1 and run_directory is not None
        directories = {name: parent if alone else parent / name for name in files}
        if isinstance(self._total_gpus, int) and any(file.num_gpus != 0 for file in files.values()):
            # here, where it is called total_gpus: a task and a queue have other names for it
            _require_gpus(self._total_gpus)
        as_queue = self._has_several_gpus and len(files) > 1
        kept = None if study is None else KeptStudy.of(study, files, directories, resumes=on_existing == "resume")
        if kept is not None:
            files, callbacks = kept.files, callbacks.and_at_trial_end(kept.on_trial_end)
        existing = existing_runs(files, directories, on_existing="error" if as_queue else on_existing)
        call = RunCall(callbacks=callbacks, progress=progress, watcher=watcher, options=options, clock=clock)
        if as_queue:
            # a queue, with its log and its plan, in the parent of the run directories: `cohort status` can follow it
            failures = run_as_queue(files, parent, num_gpus=int(self._total_gpus), call=call)
        else:
            failures = run_in_turn(files, directories, resumed=existing if on_existing == "resume" else (), call=call)
        if kept is not None:
            # of trials that ended before an interruption, the callback was not told
            kept.write()
        results = results_of(files, directories, failures)
        return results[0] if isinstance(tasks, Task) else results

    @checks_arguments("Engine.session")
    def session(self, *, options: RunOptions | None = None, clock: Clock | None = None) -> Session:
        """Return a session in which tasks share one base model and train at the same time, high priority first.

        It uses one GPU even if the engine has several. Submit tasks with ``submit``, from any thread and also
        during ``run``. The arguments are those of :meth:`run`.

        Raises:
            InputError: an argument is wrong.
        """
        # one executor has one device
        num_gpus = min(self._total_gpus, 1) if isinstance(self._total_gpus, int) else None
        require_call(progress=None, watcher=None, options=options)
        return Session(options=options, clock=clock, num_gpus=num_gpus)

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


def _require_gpus(count: int) -> None:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count > there:
        raise InputError(
            Problem(
                where="Engine: total_gpus",
                found=f"{count}, but torch can use {there or 'none'} here",
                allowed=f"at most {there}" if there else "'auto' or 0 (the CPU)",
                hint=f"Write total_gpus={there}." if there else "Write total_gpus=0 for the CPU.",
            )
        )
