"""Several tasks on one base model at once: one backbone, one bank, each task with its own run directory.

Trials of all tasks share their steps. A task of higher priority takes slots at the next step boundary; among equal ones
the first goes first, and what is left over goes to the next. Nobody's bits depend on the others, so a task ends as it
would have alone, and after a stop each run is resumed by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.durable_files import write_text
from cohort.core.errors import CohortError, InputError, Problem, RunStateError
from cohort.core.interrupts import stopping_gently
from cohort.engine.first_record import begin_record, open_state_store
from cohort.engine.machine.thread_count import settle_thread_count
from cohort.engine.memory.sizes import SizeRequest, Sizes, size_facts
from cohort.engine.memory.watch import MemoryWatch
from cohort.engine.prepare.preparation import Backbone, Preparation, prepare
from cohort.engine.prepare.trials import objective_metric
from cohort.engine.state.trial_states import TrialStateStore
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.isolation import one_line
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.progress import ProgressWatcher, RunProgress, SilentWatcher
from cohort.engine.train.session import Session, StopRequestedError
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_run import TaskRun
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import PassFacts
from cohort.runs.store import RunStore
from cohort.runs.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile
from cohort.training.executor import Executor

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

    :meth:`submit` may be called from any thread, also while :meth:`run` is at work.
    """

    def __init__(
        self, *, options: RunOptions | None = None, clock: Clock | None = None, num_gpus: int | None = None
    ) -> None:
        """Begin without a task.

        Args:
            options: How all runs are carried out.
            clock: Of all runs.
            num_gpus: Of the session, in place of the tasks' own: 0 trains on the CPU; None leaves it to the tasks.
        """
        self._num_gpus = num_gpus
        self._options, self._clock = options or RunOptions(), clock or SystemClock()
        self._submitting = threading.Lock()
        self._submitted: queue.SimpleQueue[_Submitted] = queue.SimpleQueue()
        self._directories: dict[str, Path] = {}
        self._backbone: Backbone | None = None
        self._first: Preparation | None = None
        self._executor: Executor | None = None
        self._num_joined = 0
        self._stores: list[RunStore] = []
        self._state_stores: list[TrialStateStore] = []
        self._watchers: list[ProgressWatcher] = []
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
            task: What to tune; its ``priority`` decides who goes first.
            run_directory: New or empty; ``runs/NAME`` when None.
            name: Of the task in results; a :class:`Task` has its own.
            watcher: Told of its progress.

        Raises:
            InputError: anything is wrong with the task, or it cannot share with those that are there.
        """
        watcher = watcher or SilentWatcher()
        name = name or (task.name if isinstance(task, Task) else "task")
        task = task.file if isinstance(task, Task) else task
        task = task if self._num_gpus is None else task.model_copy(update={"num_gpus": self._num_gpus})
        run_directory = Path("runs") / name if run_directory is None else Path(run_directory)
        with self._submitting:
            also = [problem for problem in (self._taken(name), RunDirectory.find_problem(run_directory)) if problem]
            if self._backbone is None:
                settle_thread_count(task.model_name_or_path, on_cpu=task.num_gpus == 0)
            preparation = prepare(
                task,
                clock=self._clock,
                say=lambda phase: watcher.update(RunProgress(phase=phase)),
                request=SizeRequest(token_budget=self._options.token_budget),
                also=also,
                backbone=self._backbone,
            )
            self._require_fit(preparation)
            if self._first is None:
                self._first = preparation
                self._backbone = preparation.backbone
            self._directories[name] = run_directory
            self._watchers.append(watcher)
            for note in preparation.notes:
                watcher.note(note)
            self._submitted.put(
                _Submitted(name=name, directory=run_directory, preparation=preparation, watcher=watcher)
            )

    def run(self) -> list[TaskResult]:
        """Train until every task that was handed in has ended; return their results in the order of submission.

        Raises:
            TasksFailedError: some tasks failed, or could not begin; it carries the results of the others.
            KeyboardInterrupt: interrupted, with everything saved; each run can be resumed by itself. A task that is
                handed in after that trains at the next call.
        """
        waiting = self._take_submitted()
        if self._executor is None and not waiting:
            return []
        stop, ending = threading.Event(), contextlib.ExitStack()
        members: dict[Supervisor, tuple[str, TaskRun]] = {}
        self._stores, self._state_stores = [], []

        def end(member: Supervisor) -> None:
            name, run = members.pop(member)
            run.close_trackers()
            try:
                run.finish(was_alone=True)
            except CohortError as error:
                self._failures[name] = error
            self._ended.add(name)

        def welcome() -> None:
            for submitted in [*waiting, *self._take_submitted()]:
                try:
                    run = self._begin(submitted, sizes, ending)
                except Exception as error:
                    # the tasks that are in training have no part in it
                    self._failures[submitted.name] = _beginning_error(submitted, error)
                    continue
                members[run.supervisor] = (submitted.name, run)
                session.join(run.supervisor)
            waiting.clear()
            memory.took()

        with ending:
            executor, sizes = self._open_executor(waiting)
            memory = self._watch_memory(executor)
            session = Session(
                executor,
                capacity=sizes.capacity,
                clock=self._clock,
                stop_requested=stop.is_set,
                at_boundary=welcome,
                on_end=end,
            )
            try:
                with stopping_gently(stop):
                    session.run()
            except StopRequestedError:
                for _, run in members.values():
                    run.was_interrupted()
                raise KeyboardInterrupt from None
            finally:
                memory.record()
                for _, run in members.values():
                    run.close_trackers()
                # what was stopped is saved, and its slots are free for tasks of the next call
                for key in executor.resident:
                    executor.drop(key)
        # one that was handed in when the last had ended waits for the next call
        done = [name for name in self._directories if name in self._ended and name not in self._failures]
        results = {name: read_task_result(self._directories[name], name=name) for name in done}
        if self._failures:
            raise TasksFailedError(results=results, failures=self._failures)
        return list(results.values())

    def _make_room(self) -> bool:
        """Move parked states of all tasks off the device."""
        did_leave = [state_store.leave_device() for state_store in self._state_stores]
        return any(did_leave)

    def _watch_memory(self, executor: Executor) -> MemoryWatch:
        """Return a watch whose findings are in every task's record."""
        assert self._backbone is not None, "the first task loads the backbone"

        def record(passes: PassFacts) -> None:
            for store in self._stores:
                store.set_facts(passes=passes)

        def note(line: str) -> None:
            for watcher in self._watchers:
                watcher.note(line)

        return MemoryWatch(
            executor, self._backbone.memory, before=PassFacts(), record=record, note=note, clock=self._clock
        )

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
        task, problems = preparation.task, []
        if preparation.target_modules != first.target_modules:
            problems.append(
                Problem(
                    where=task.where("lora.target_modules"),
                    found=f"{len(preparation.target_modules)} linears, not those of the tasks it should run beside",
                    allowed="the same target_modules: tasks that share a bank adapt the same linears",
                    hint="Tune it in a session of its own.",
                )
            )
        if task.memory != first.task.memory:
            problems.append(
                Problem(
                    where=task.where("memory"),
                    found="another memory section than that of the tasks it should run beside",
                    allowed="the same: passes of all tasks are made together, within one limit",
                    hint="Write it as theirs is, or tune it in a session of its own.",
                )
            )
        sizes = None if self._backbone is None else self._backbone.sizes
        largest = max(spec.adapter.r for spec in preparation.proposals.largest())
        if sizes is not None and largest > sizes.capacity.rank_rows:
            problems.append(
                Problem(
                    where=task.where("search.space.r"),
                    found=str(largest),
                    allowed=f"at most {sizes.capacity.rank_rows}, the rank rows of the session that is running",
                    hint="Hand it in before the session runs, or tune it in one of its own.",
                )
            )
        if problems:
            raise InputError(problems)

    def _open_executor(self, waiting: list[_Submitted]) -> tuple[Executor, Sizes]:
        """Return the executor, as large as the task that needs most of it asks for; the others wait their turn."""
        with self._submitting:
            assert self._backbone is not None, "the first task loads the backbone"
            if self._executor is not None:
                assert self._backbone.sizes is not None, "an executor has sizes"
                return self._executor, self._backbone.sizes
            largest = max(waiting, key=lambda entry: entry.preparation.sizes.capacity.rank_rows).preparation
            self._executor = largest.build_executor()
            self._executor.reliefs.append(self._make_room)
            self._backbone = replace(self._backbone, sizes=largest.sizes)
            return self._executor, largest.sizes

    def _begin(self, submitted: _Submitted, sizes: Sizes, ending: contextlib.ExitStack) -> TaskRun:
        """Make the run directory of a task and join its parts; ``ending`` gives back its lock and its store."""
        with contextlib.ExitStack() as beginning:
            run, store, state_store = self._join_parts(submitted, sizes, beginning)
            try:
                run.measure_base()
            except BaseException:
                run.close_trackers()
                raise
            ending.push(beginning.pop_all())
        self._num_joined += 1
        self._stores.append(store)
        self._state_stores.append(state_store)
        return run

    def _join_parts(
        self, submitted: _Submitted, sizes: Sizes, ending: contextlib.ExitStack
    ) -> tuple[TaskRun, RunStore, TrialStateStore]:
        assert self._executor is not None, "tasks join an open session"
        passes = PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens)
        facts = replace(submitted.preparation.facts, sizes=size_facts(sizes), passes=passes)
        preparation = replace(submitted.preparation, sizes=sizes, facts=facts)
        directory = RunDirectory.create(submitted.directory)
        ending.enter_context(directory.lock())
        directory.clean_up()
        write_text(directory.task_file, preparation.task.resolved_yaml())
        store = RunStore.create(directory.database, metric=objective_metric(preparation.task), clock=self._clock)
        ending.enter_context(contextlib.closing(store))
        state_store = open_state_store(preparation, directory, options=self._options, num_tasks=len(self._directories))
        begin_record(preparation, store, state_store, directory=directory)
        share = ExecutorShare(self._executor, rows=preparation.data.train, place=self._num_joined)
        parts = OpenRun(
            directory=directory,
            store=store,
            state_store=state_store,
            clock=self._clock,
            watcher=submitted.watcher,
            options=self._options,
        )
        run = TaskRun(preparation, share, parts, arrival=self._num_joined)
        return run, store, state_store


def _beginning_error(submitted: _Submitted, error: Exception) -> CohortError:
    """Return what kept a task from beginning as an error of ours; what is none of ours is its cause."""
    if isinstance(error, CohortError):
        return error
    found = RunStateError(f"{submitted.directory}: the task could not begin: {one_line(error)}")
    found.__cause__ = error
    return found
