"""Several tasks on one base model at once: one backbone, one bank, each task with its own run directory.

Trials of all tasks share their steps. A task of higher priority takes slots at the next step boundary; among equal ones
the first goes first, and what is left over goes to the next. A trial's bits do not depend on the others, so a task ends
as it would have alone, and after a stop each run is resumed by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InputError, Problem, RunStateError
from cohort.engine.run_start import begun_run, new_directory, prepare_task
from cohort.engine.train.isolation import one_line
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.progress import ProgressWatcher, SilentWatcher
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.task_session import TaskSession
from cohort.memory.sizes import SizeRequest, size_facts
from cohort.prepare.preparation import LoadedBackbone, Preparation
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import PassFacts
from cohort.runs.results.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile

__all__ = ["SharedSession"]


@dataclass(frozen=True, kw_only=True)
class _Submitted:
    """A task that is ready to join."""

    name: str
    directory: Path
    preparation: Preparation
    watcher: ProgressWatcher


class SharedSession:
    """Trains tasks that share a base model and its adapted linears in one executor.

    :meth:`submit` may be called from any thread, also during :meth:`run`.
    """

    def __init__(
        self, *, options: RunOptions | None = None, clock: Clock | None = None, num_gpus: int | None = None
    ) -> None:
        """Start without a task.

        Args:
            options: How all runs are carried out.
            clock: Measures all runs' time.
            num_gpus: Replaces the tasks' own: 0 trains on the CPU; None leaves it to the tasks.
        """
        self._num_gpus = num_gpus
        self._options, self._clock = options or RunOptions(), clock or SystemClock()
        # held while a task is prepared: two threads must not load the backbone twice
        self._submitting = threading.Lock()
        self._submitted: queue.SimpleQueue[_Submitted] = queue.SimpleQueue()
        self._directories: dict[str, Path] = {}
        self._first: Preparation | None = None
        self._session: TaskSession | None = None
        self._ended: set[str] = set()
        self._failures: dict[str, CohortError] = {}

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
            found = (self._taken(name), RunDirectory.find_problem(run_directory), _several_gpus(task))
            also = [problem for problem in found if problem]
            preparation = prepare_task(
                task,
                watcher=watcher,
                clock=self._clock,
                request=SizeRequest(token_budget=self._options.token_budget),
                also=also,
                backbone=self._backbone(),
            )
            self._require_fit(preparation)
            self._first = self._first or preparation
            self._directories[name] = run_directory
            self._submitted.put(
                _Submitted(name=name, directory=run_directory, preparation=preparation, watcher=watcher)
            )

    def run(self) -> list[TaskResult]:
        """Train until every submitted task has ended; return their results in the order of submission.

        Raises:
            TasksFailedError: some tasks failed, or could not begin; it carries the results of the others.
            KeyboardInterrupt: interrupted, with everything saved; each run can be resumed by itself. A task that is
                submitted after that trains at the next call.
        """
        waiting = self._take_submitted()
        if self._session is None and not waiting:
            return []
        session, names = self._open_session(waiting), dict[TaskRun, str]()

        def welcome() -> None:
            for submitted in [*waiting, *self._take_submitted()]:
                try:
                    names[self._join(submitted, session, runs)] = submitted.name
                except Exception as error:
                    # the tasks that are in training have no part in it
                    self._failures[submitted.name] = _beginning_error(submitted, error)
            waiting.clear()

        def finish(run: TaskRun) -> None:
            try:
                session.finish(run)
            except CohortError as error:
                self._failures[names[run]] = error
            self._ended.add(names[run])

        with contextlib.ExitStack() as runs:
            try:
                session.run(welcome=welcome, finish=finish)
            finally:
                # what was stopped is saved, and its slots are free for tasks of the next call
                session.vacate()
        # one that was handed in when the last had ended waits for the next call
        done = [name for name in self._directories if name in self._ended and name not in self._failures]
        results = {name: read_task_result(self._directories[name], name=name) for name in done}
        if self._failures:
            raise TasksFailedError(results=results, failures=self._failures)
        return list(results.values())

    def _open_session(self, waiting: list[_Submitted]) -> TaskSession:
        """Return the session, as large as the task with the largest adapters asks for; the others wait their turn."""
        with self._submitting:
            if self._session is None:
                largest = max(waiting, key=lambda entry: entry.preparation.sizes.capacity.rank_rows).preparation
                self._session = TaskSession(largest, clock=self._clock)
            return self._session

    def _backbone(self) -> LoadedBackbone | None:
        """Return the base model that the first task loaded; once the session runs, with its executor's sizes."""
        if self._first is None:
            return None
        return replace(self._first.backbone, sizes=None if self._session is None else self._session.sizes)

    def _join(self, submitted: _Submitted, session: TaskSession, runs: contextlib.ExitStack) -> TaskRun:
        """Make the run directory of a task and let it join; ``runs`` gives back its lock and its record."""
        # what the task asked for by itself does not hold in the session's executor
        sizes = session.sizes
        passes = PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens)
        facts = replace(submitted.preparation.facts, sizes=size_facts(sizes), passes=passes)
        preparation = replace(submitted.preparation, sizes=sizes, facts=facts)
        # given back at once if the task cannot begin, at the end of the session if it does
        with contextlib.ExitStack() as beginning:
            directory = beginning.enter_context(new_directory(submitted.directory, preparation.task))
            run = beginning.enter_context(
                begun_run(
                    preparation,
                    directory,
                    watcher=submitted.watcher,
                    options=self._options,
                    clock=self._clock,
                    num_tasks=len(self._directories),
                )
            )
            joined = session.join(preparation, run)
            runs.push(beginning.pop_all())
        return joined

    def _taken(self, name: str) -> Problem | None:
        if name not in self._directories:
            return None
        return Problem(
            where="name", found=f"{name!r} twice", allowed="a name for each task", hint="Choose another name."
        )

    def _take_submitted(self) -> list[_Submitted]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._submitted.get_nowait())
        return taken

    def _require_fit(self, preparation: Preparation) -> None:
        """Refuse a task that cannot share the bank with those that are there."""
        first = self._first
        if first is None:
            return
        task, problems, linears = preparation.task, [], preparation.inputs.target_modules
        # a rank row holds the same linears for every adapter of a bank
        if linears != first.inputs.target_modules:
            problems.append(
                Problem(
                    where=task.where("lora.target_modules"),
                    found=f"{len(linears)} linears, which differ from those of the session's tasks",
                    allowed="the same target_modules: tasks that share a bank adapt the same linears",
                    hint="Tune this task in a session of its own.",
                )
            )
        if task.memory != first.task.memory:
            problems.append(
                Problem(
                    where=task.where("memory"),
                    found="a memory section that differs from that of the session's tasks",
                    allowed="the same: all tasks train in the same passes, within one limit",
                    hint="Write the same section, or tune this task in a session of its own.",
                )
            )
        theirs, own = possible_optimizers(first.task), possible_optimizers(task)
        if own != theirs:
            problems.append(
                Problem(
                    where=task.where("training.optim"),
                    found=f"{', '.join(own)}; the session's tasks have {', '.join(theirs)}",
                    allowed="the same where one of them is adamw_8bit, whose states differ: all tasks share a bank",
                    hint="Write the same optim, or tune this task in a session of its own.",
                )
            )
        # the bank was made for the tasks that were there first, and is not made larger while they train
        largest = max(spec.adapter.num_rows for spec in preparation.proposals.largest())
        if self._session is not None and largest > (rank_rows := self._session.sizes.capacity.rank_rows):
            problems.append(
                Problem(
                    where=task.where("search.space.r"),
                    found=str(largest),
                    allowed=f"at most {rank_rows}, the rank rows of the running session",
                    hint="Submit the task before the session runs, or tune it in a session of its own.",
                )
            )
        if problems:
            raise InputError(problems)


def _several_gpus(task: TaskFile) -> Problem | None:
    if task.num_gpus == "auto" or task.num_gpus <= 1:
        return None
    return Problem(
        where=task.where("num_gpus"),
        found=str(task.num_gpus),
        allowed="auto | 0 (CPU) | 1: tasks of a session share one GPU",
        hint="Write num_gpus: 1, or tune this task by itself.",
    )


def _beginning_error(submitted: _Submitted, error: Exception) -> CohortError:
    """Return the error that kept a task from starting, in a form that results can carry."""
    if isinstance(error, CohortError):
        return error
    # nothing of ours: it stays the cause, for those who want to see where it came from
    found = RunStateError(f"{submitted.directory}: the task could not begin: {one_line(error)}")
    found.__cause__ = error
    return found
