"""The half of a session that any thread may call: tasks are checked, compared with those there, and handed in."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InputError, Problem
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.run_resume import ready_to_resume
from cohort.engine.run_start import prepare_task
from cohort.engine.session_task import SessionTask
from cohort.engine.shared_base import SharedBase
from cohort.engine.shared_fit import CannotShareError, fit_problems, several_gpus, too_long
from cohort.engine.train.open_run import RunConditions, RunOptions
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.memory.budget import Sizes
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone
from cohort.prepare.preparation import Preparation
from cohort.runs.directory import RunDirectory
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile

__all__ = ["Intake"]


class Intake:
    """Takes in tasks; :class:`~cohort.engine.session.Session` trains them."""

    def __init__(
        self,
        *,
        options: RunOptions | None = None,
        clock: Clock | None = None,
        num_gpus: int | None = None,
        is_shared: bool = True,
        base: SharedBase | None = None,
    ) -> None:
        """Start without a task; arguments are those of a session."""
        self._num_gpus, self._is_shared, self._base = num_gpus, is_shared, base
        self._options, self._clock = options or RunOptions(), clock or SystemClock()
        # held while a task is prepared: two threads must not load the backbone twice
        self._submitting = threading.Lock()
        self._submitted: queue.SimpleQueue[SessionTask] = queue.SimpleQueue()
        # by name: those that were handed in and have neither left nor failed
        self._tasks: dict[str, SessionTask] = {}
        self._failures: dict[str, CohortError] = {}
        self._leaving: set[str] = set()
        # whose base model all tasks share
        self._first: Preparation | None = None
        # the executor's; None while it is not built
        self._sizes: Sizes | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether no task has been handed in that others would have to fit."""
        return self._first is None

    @property
    def has_submitted(self) -> bool:
        """Whether a task was handed in that has not joined."""
        return not self._submitted.empty()

    def submit(
        self,
        task: Task | TaskFile,
        run_directory: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        watcher: ProgressWatcher | None = None,
        callbacks: Callbacks | None = None,
        tenant: str = "",
    ) -> None:
        """Check a task, read its inputs and hand it in; its trials compete for slots from the next step on.

        Args:
            task: What to tune; tasks of higher ``priority`` go first.
            run_directory: New or empty; ``runs/NAME`` when None.
            name: The task's name in results; a :class:`Task` has its own.
            watcher: Receives progress.
            callbacks: Called between two steps.
            tenant: Whose share it uses, where the base model is shared.

        Raises:
            InputError: anything is wrong with the task, or it cannot share with those that are there.
        """
        given: object = task
        if not isinstance(given, Task | TaskFile):
            shown, hint = f"a value of type {type(task).__name__}", "Give a cohort.Task(model=..., dataset=...)."
            raise InputError(Problem(where="submit: task", found=shown, allowed="a cohort.Task", hint=hint))
        conditions = self._conditions(watcher, callbacks)
        name = name or (task.name if isinstance(task, Task) else "task")
        task = task.file if isinstance(task, Task) else task
        task = task if self._num_gpus is None else task.model_copy(update={"num_gpus": self._num_gpus})
        run_directory = Path("runs") / name if run_directory is None else Path(run_directory)
        task = task.with_rows_in(RunDirectory(run_directory).rows)
        with self._submitting:
            # one that left may come back under its name, and is not to leave at once
            self._leaving.discard(name)
            several = several_gpus(task) if self._is_shared else None
            found = (self._taken_name(name), RunDirectory.find_problem(run_directory), several)
            preparation = prepare_task(
                task,
                conditions,
                # an executor that tasks share has one rank
                request=SizeRequest(token_budget=self._options.token_budget) if self._is_shared else None,
                also=[problem for problem in found if problem],
                backbone=self._backbone(),
            )
            self._hand_in(
                SessionTask(
                    name=name, directory=run_directory, preparation=preparation, conditions=conditions, tenant=tenant
                )
            )

    def resume(
        self,
        run_directory: str | os.PathLike[str],
        *,
        name: str | None = None,
        watcher: ProgressWatcher | None = None,
        callbacks: Callbacks | None = None,
        places: Sequence[str] = (),
        tenant: str = "",
    ) -> bool:
        """Hand in the run of a directory, which goes on from its last checkpoint; return False if it is done.

        The arguments are those of :meth:`submit`; ``name`` is the directory's where it is None, and ``places`` is as
        for :func:`cohort.engine.tune.resume`.

        Raises:
            InputError: there is no run, it is not what it began with, or it cannot share with those that are there.
            RunStateError: another process holds the run.
        """
        path, conditions = Path(run_directory), self._conditions(watcher, callbacks)
        name = name or path.name
        with self._submitting:
            self._leaving.discard(name)
            if (taken := self._taken_name(name)) is not None:
                raise InputError(taken)
            ready = ready_to_resume(path, conditions, places=places, backbone=self._backbone())
            if ready is None:
                return False
            with contextlib.ExitStack() as held:
                held.enter_context(ready)
                if self._is_shared and (several := several_gpus(ready.preparation.task)) is not None:
                    raise CannotShareError(several)
                self._hand_in(
                    SessionTask(
                        name=name,
                        directory=path,
                        preparation=ready.preparation,
                        conditions=conditions,
                        ready=ready,
                        tenant=tenant,
                    )
                )
                held.pop_all()
        return True

    def leave(self, name: str) -> None:
        """Have a task save its state at the next step boundary and leave, while the others train on; for any thread.

        A task that has ended, or was never handed in, is not asked.
        """
        self._leaving.add(name)

    def _hand_in(self, task: SessionTask) -> None:
        if self._base is not None and (problem := too_long(task.preparation, sizes=self._base.backbone.sizes)):
            raise InputError(problem)
        if self._first is not None and (
            problems := fit_problems(task.preparation, first=self._first, sizes=self._sizes, threads=task.threads)
        ):
            raise CannotShareError(problems)
        self._first = self._first or task.preparation
        self._tasks[task.name] = task
        # after an error it has another try
        self._failures.pop(task.name, None)
        self._submitted.put(task)

    def _conditions(self, watcher: ProgressWatcher | None, callbacks: Callbacks | None) -> RunConditions:
        return RunConditions(
            clock=self._clock,
            watcher=watcher or SilentWatcher(),
            options=self._options,
            callbacks=callbacks or Callbacks(),
        )

    def _backbone(self) -> LoadedBackbone | None:
        """Return the base model that is there, or that the first task loaded, with the sizes of an executor that is."""
        if self._base is not None:
            return self._base.backbone
        return None if self._first is None else replace(self._first.backbone, sizes=self._sizes)

    def _taken_name(self, name: str) -> Problem | None:
        if name not in self._tasks:
            return None
        return Problem(
            where="name", found=f"{name!r} twice", allowed="a name for each task", hint="Choose another name."
        )

    def _take_submitted(self) -> list[SessionTask]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._submitted.get_nowait())
        return taken
