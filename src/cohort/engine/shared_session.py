"""Several tasks on one base model at once: one backbone, one bank, each task with its own run directory.

Trials of all tasks share their steps. A task of higher priority takes slots at the next step boundary; among equal ones
the first goes first, and what is left over goes to the next. A trial's bits do not depend on the others, so a task ends
as it would have alone. A task may come, leave or fail while the others train, and each run is resumed by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.interrupts import interrupting
from cohort.engine.run_resume import ready_to_resume
from cohort.engine.run_start import prepare_task
from cohort.engine.shared_fit import fit_problems, several_gpus
from cohort.engine.submitted_task import SubmittedTask, task_error
from cohort.engine.train.isolation import is_executor_wide
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.task_session import TaskSession
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.loaded_backbone import LoadedBackbone
from cohort.prepare.preparation import Preparation
from cohort.runs.directory import RunDirectory
from cohort.runs.results.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile

__all__ = ["CannotShareError", "SharedSession", "TaskEnd"]


class CannotShareError(InputError):
    """A task is in order, but cannot share the executor with those that are there."""


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """How a task of a session ended.

    Attributes:
        name: Of the task.
        error: What ended it; None where its results are written, or where it left.
        has_left: It was asked to leave: its state is saved, and it is not done.
    """

    name: str
    error: CohortError | None = None
    has_left: bool = False


class SharedSession:
    """Trains tasks that share a base model and its adapted linears in one executor.

    :meth:`submit` may be called from any thread, also during :meth:`run`.
    """

    def __init__(
        self,
        *,
        options: RunOptions | None = None,
        clock: Clock | None = None,
        num_gpus: int | None = None,
        on_end: Callable[[TaskEnd], None] = lambda _: None,
    ) -> None:
        """Start without a task.

        Args:
            options: How all runs are carried out.
            clock: Measures all runs' time.
            num_gpus: Replaces the tasks' own: 0 trains on the CPU; None leaves it to the tasks.
            on_end: Called when a task has ended and its run directory is free, while others may train on.
        """
        self._num_gpus, self._on_end = num_gpus, on_end
        self._options, self._clock = options or RunOptions(), clock or SystemClock()
        # held while a task is prepared: two threads must not load the backbone twice
        self._submitting = threading.Lock()
        self._submitted: queue.SimpleQueue[SubmittedTask] = queue.SimpleQueue()
        self._directories: dict[str, Path] = {}
        self._first: Preparation | None = None
        self._session: TaskSession | None = None
        self._ended: set[str] = set()
        self._failures: dict[str, CohortError] = {}
        self._members: dict[TaskRun, str] = {}
        # what each task holds until it ends: its lock and its record
        self._held: dict[str, contextlib.ExitStack] = {}
        self._leaving: set[str] = set()

    @property
    def free_share(self) -> float:
        """Share of a step's tokens that the tasks leave free while none of their trials waits; for any thread."""
        return 0.0 if self._session is None else self._session.free_share

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
    ) -> None:
        """Check a task, read its inputs and hand it in; its trials compete for slots from the next step on.

        Args:
            task: What to tune; tasks of higher ``priority`` go first.
            run_directory: New or empty; ``runs/NAME`` when None.
            name: The task's name in results; a :class:`Task` has its own.
            watcher: Receives progress.

        Raises:
            InputError: anything is wrong with the task, or it cannot share with those that are there.
        """
        given: object = task
        if not isinstance(given, Task | TaskFile):
            shown, hint = f"a value of type {type(task).__name__}", "Give a cohort.Task(model=..., dataset=...)."
            raise InputError(Problem(where="submit: task", found=shown, allowed="a cohort.Task", hint=hint))
        watcher = watcher or SilentWatcher()
        name = name or (task.name if isinstance(task, Task) else "task")
        task = task.file if isinstance(task, Task) else task
        task = task if self._num_gpus is None else task.model_copy(update={"num_gpus": self._num_gpus})
        run_directory = Path("runs") / name if run_directory is None else Path(run_directory)
        task = task.with_rows_in(RunDirectory(run_directory).rows)
        with self._submitting:
            # one that left may come back under its name, and is not to leave at once
            self._leaving.discard(name)
            found = (self._taken(name), RunDirectory.find_problem(run_directory), several_gpus(task))
            also = [problem for problem in found if problem]
            preparation = prepare_task(
                task,
                watcher=watcher,
                clock=self._clock,
                request=SizeRequest(token_budget=self._options.token_budget),
                also=also,
                backbone=self._backbone(),
            )
            self._hand_in(SubmittedTask(name=name, directory=run_directory, preparation=preparation, watcher=watcher))

    def resume(
        self, run_directory: str | os.PathLike[str], *, name: str | None = None, watcher: ProgressWatcher | None = None
    ) -> bool:
        """Hand in the run of a directory, which goes on from its last checkpoint; return False if it is done.

        The arguments are those of :meth:`submit`; ``name`` is the directory's where it is None.

        Raises:
            InputError: there is no run, it is not what it began with, or it cannot share with those that are there.
            RunStateError: another process holds the run.
        """
        path, watcher = Path(run_directory), watcher or SilentWatcher()
        name = name or path.name
        with self._submitting:
            self._leaving.discard(name)
            if (taken := self._taken(name)) is not None:
                raise InputError(taken)
            ready = ready_to_resume(
                path, watcher=watcher, options=self._options, clock=self._clock, backbone=self._backbone()
            )
            if ready is None:
                return False
            with contextlib.ExitStack() as held:
                held.enter_context(ready)
                if (several := several_gpus(ready.preparation.task)) is not None:
                    raise CannotShareError(several)
                self._hand_in(
                    SubmittedTask(
                        name=name, directory=path, preparation=ready.preparation, watcher=watcher, ready=ready
                    )
                )
                held.pop_all()
        return True

    def leave(self, name: str) -> None:
        """Have a task save its state at the next step boundary and leave, while the others train on; for any thread.

        A task that has ended, or was never handed in, is not asked.
        """
        self._leaving.add(name)

    def close(self) -> None:
        """Give back the run directories of tasks that were handed in and have not joined; they can be resumed."""
        for submitted in self._take_submitted():
            submitted.give_back()

    def _hand_in(self, submitted: SubmittedTask) -> None:
        sizes = None if self._session is None else self._session.sizes
        if self._first is not None and (
            problems := fit_problems(submitted.preparation, first=self._first, sizes=sizes, threads=submitted.threads)
        ):
            raise CannotShareError(problems)
        self._first = self._first or submitted.preparation
        self._directories[submitted.name] = submitted.directory
        # after an error it has another try
        self._failures.pop(submitted.name, None)
        self._submitted.put(submitted)

    @interrupting()
    def run(self) -> list[TaskResult]:
        """Train until every submitted task has ended; return their results in the order of submission.

        Raises:
            TasksFailedError: some tasks failed, or could not begin; it carries the results of the others.
            KeyboardInterrupt: interrupted, with everything saved; each run can be resumed by itself. A task that is
                submitted after that trains at the next call.
        """
        # before the session is opened: its bank is as large as the largest of them needs
        waiting = self._take_submitted()
        if self._session is None and not waiting:
            return []
        session = self._open_session(waiting)

        def welcome() -> None:
            # first, so that one which comes back at once finds the others
            for run, name in [*self._members.items()]:
                if name in self._leaving:
                    self._let_go(run, session)
            for submitted in [*waiting, *self._take_submitted()]:
                self._join(submitted, session)
            waiting.clear()

        def finish(run: TaskRun) -> None:
            try:
                session.finish(run, then=lambda: self._end(run))
            except Exception as found:
                if is_executor_wide(found):
                    raise
                self._end(run, error=found)

        try:
            session.run(welcome=welcome, finish=finish, fail=lambda run, error: self._end(run, error=error))
        finally:
            # what was stopped is saved, and its slots are free for tasks of the next call
            session.vacate()
            self._members.clear()
            for held in self._held.values():
                held.close()
            self._held.clear()
        # one that was handed in when the last had ended waits for the next call
        done = [name for name in self._directories if name in self._ended and name not in self._failures]
        results = {name: read_task_result(self._directories[name], name=name) for name in done}
        if self._failures:
            raise TasksFailedError(results=results, failures=self._failures)
        return list(results.values())

    def _open_session(self, waiting: list[SubmittedTask]) -> TaskSession:
        """Return the session, as large as the task with the largest adapters asks for; the others wait their turn."""
        with self._submitting:
            if self._session is None:
                # those that came meanwhile found no session whose sizes they would have to fit
                waiting += self._take_submitted()
                largest = max(waiting, key=lambda entry: entry.preparation.sizes.capacity.rank_rows).preparation
                self._session = TaskSession(largest, clock=self._clock)
            return self._session

    def _backbone(self) -> LoadedBackbone | None:
        """Return the base model that the first task loaded; once the session runs, with its executor's sizes."""
        if self._first is None:
            return None
        return replace(self._first.backbone, sizes=None if self._session is None else self._session.sizes)

    def _join(self, submitted: SubmittedTask, session: TaskSession) -> None:
        """Open the run of a task and let it join; an error is the task's alone."""
        if submitted.name in self._leaving:
            submitted.give_back()
            self._report(TaskEnd(name=submitted.name, has_left=True))
            return
        try:
            # given back at once if the task cannot begin, at its end if it does
            with contextlib.ExitStack() as beginning:
                run = submitted.join(
                    session,
                    options=self._options,
                    clock=self._clock,
                    num_tasks=len(self._directories),
                    held=beginning,
                )
                self._held[submitted.name] = beginning.pop_all()
        except Exception as error:
            # the tasks that are in training have no part in it
            self._report(TaskEnd(name=submitted.name, error=task_error(submitted.directory, error, "begin")))
        else:
            self._members[run] = submitted.name

    def _let_go(self, run: TaskRun, session: TaskSession) -> None:
        """Save the state of a task that was asked to leave."""
        error: Exception | None = None
        try:
            session.leave(run)
        except Exception as found:
            if is_executor_wide(found):
                raise
            error = found
        self._end(run, error=error, has_left=error is None)

    def _end(self, run: TaskRun, *, error: Exception | None = None, has_left: bool = False) -> None:
        """Give back what a task held, and say how it ended."""
        name = self._members.pop(run)
        self._held.pop(name).close()
        found = None if error is None else task_error(self._directories[name], error, "go on")
        self._report(TaskEnd(name=name, error=found, has_left=has_left))

    def _report(self, end: TaskEnd) -> None:
        self._leaving.discard(end.name)
        if end.has_left:
            # it may come back in this session
            del self._directories[end.name]
        elif end.error is None:
            self._ended.add(end.name)
        else:
            self._failures[end.name] = end.error
            self._directories.pop(end.name, None)
        self._on_end(end)

    def _taken(self, name: str) -> Problem | None:
        if name not in self._directories:
            return None
        return Problem(
            where="name", found=f"{name!r} twice", allowed="a name for each task", hint="Choose another name."
        )

    def _take_submitted(self) -> list[SubmittedTask]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._submitted.get_nowait())
        return taken
