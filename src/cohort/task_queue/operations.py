"""Working a queue off, adding to it, removing from it: the functions that the command line and Python call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.core.process.interrupts import StopRequest, stopping_gently
from cohort.machine.cluster.worker_pool import WorkerPool
from cohort.prepare.inputs import read_inputs
from cohort.runs.directory import QUEUE_DATABASE, RunDirectory
from cohort.runs.lock import RunLock
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.task_queue.dispatcher import Dispatcher
from cohort.task_queue.progress import QueueWatcher, SilentQueueWatcher
from cohort.task_queue.records import Expecting, QueuedTask, TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import LOCK_NAME, QueueStore, find_queue, open_queue, queue_holder
from cohort.task_queue.submission import read_submissions, task_of

__all__ = ["add_to_queue", "enqueue", "refuse_a_run", "remove_from_queue", "work_off"]

# naming such a task again asks for another try
_ENDED_WITHOUT_RESULT = (TaskState.FAILED, TaskState.HELD, TaskState.REMOVED)


def add_to_queue(
    files: Sequence[Path],
    directory: Path,
    *,
    expect: Expecting | None = None,
    clock: Clock | None = None,
) -> list[QueuedTask]:
    """Add tasks to the queue in ``directory``, which may be running, and return the added ones.

    A task that failed, was held or removed is put back, and continues where it was.

    Args:
        directory: The queue's directory; made where there is none.
        expect: Predicts tasks, and refuses those that cannot run; when None their inputs are checked, and the
            dispatcher predicts them later, since it knows the devices.

    Raises:
        InputError: every problem of the files and their inputs, or a file changed since it was added; then no task was
            added.
    """
    # read before any file is checked, so that a wrong file leaves an existing queue as it is
    known: tuple[QueuedTask, ...] = ()
    if find_queue(directory):
        with open_queue(directory) as store:
            known = store.tasks()
    else:
        refuse_a_run(directory)
    new, again = read_submissions(files, known=known, directory=directory, clock=clock or SystemClock())
    enqueue(new, directory, expect=expect)
    with open_queue(directory) as store:
        # one that is done, waits or runs needs nothing: naming it again continues the queue
        back = [task for task in again if task.state in _ENDED_WITHOUT_RESULT]
        for task in back:
            # the user has usually repaired something, so its faults are counted from zero
            store.update(task.name, state=TaskState.QUEUED, reason="", is_withdrawn=False, attempts=0)
    return [*new, *back]


def refuse_a_run(directory: Path) -> None:
    # `cohort resume DIRECTORY` would find the queue there and never again the run
    if RunDirectory(directory).database.exists():
        raise InputError(
            Problem(
                where=f"-o {directory}",
                found="the directory of one run",
                allowed="a directory that is new or empty, or holds a queue",
                hint=f"Choose another directory, or continue the run: cohort resume {directory}.",
            )
        )


def enqueue(tasks: Sequence[QueuedTask], directory: Path, *, expect: Expecting | None = None) -> None:
    """Add tasks of new names to the queue in ``directory``; the arguments are those of :func:`add_to_queue`.

    Raises:
        InputError: every problem of their inputs; no task was added then.
        RunStateError: a name is taken.
    """
    tasks = _checked(tasks, expect)
    directory.mkdir(parents=True, exist_ok=True)
    with QueueStore.open(directory / QUEUE_DATABASE, create=True) as store:
        store.add(tasks)


def _checked(tasks: Sequence[QueuedTask], expect: Expecting | None) -> list[QueuedTask]:
    """Return the tasks, with their expected seconds where ``expect`` is given; raise every problem of their inputs."""
    problems: list[Problem] = []
    checked: list[QueuedTask] = []
    for task in tasks:
        try:
            if expect is None:
                read_inputs(task_of(task))
                checked.append(task)
            else:
                options = expect(task)
                checked.append(replace(task, expected_seconds=options[0].seconds, options=options))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return checked


def remove_from_queue(names: Sequence[str], directory: Path) -> None:
    """Take tasks off the queue; one that runs saves its state and stops. Run directories stay.

    Raises:
        InputError: the queue has no such task, or it is done or removed.
    """
    with open_queue(directory) as store:
        by_name = {task.name: task for task in store.tasks()}
        kept = (TaskState.DONE, TaskState.REMOVED)
        open_names = [name for name, task in by_name.items() if task.state not in kept]
        problems = [
            Problem(
                where=f"{directory}: {name}",
                found=f"a task that is {by_name[name].state.value}" if name in by_name else "no task of that name",
                allowed=f"one of {', '.join(open_names)}" if open_names else "nothing: all tasks are done or removed",
                hint=f"See `cohort queue list -o {directory}`.",
            )
            for name in names
            if name not in open_names
        ]
        if problems:
            raise InputError(problems)
        # a dispatcher has to stop a task's worker first, so it removes the task itself
        is_worked_off = queue_holder(directory) is not None
        for name in names:
            store.update(name, is_withdrawn=True)
            if not is_worked_off or by_name[name].state.is_final:
                store.update(name, state=TaskState.REMOVED, reason="removed by the user")


def work_off(
    directory: Path,
    pool: WorkerPool,
    *,
    expect: Expecting,
    work: Callable[[QueuedTask], SharedWork | None] | None = None,
    settings: DispatcherSettings | None = None,
    watcher: QueueWatcher | None = None,
    clock: Clock | None = None,
    stop: StopRequest | None = None,
) -> tuple[QueuedTask, ...]:
    """Work off the queue in ``directory`` and return its tasks as they ended.

    Args:
        pool: Where workers run (:func:`~cohort.task_queue.workers.pool.open_pool`); closed at the end.
        expect: Predicts tasks (:class:`~cohort.task_queue.expected_time.ExpectedTime`).
        work: Returns what is left of a task in an executor that it could share; without it tasks share none.
        stop: Set to ask all tasks to save their states and stop, as signals do in the main thread.

    Raises:
        InputError: there is no queue.
        RunStateError: another process works it off, or no slot is left.
        KeyboardInterrupt: asked to stop; every task has saved its state.
    """
    # Ctrl-C sets the event instead of raising in the middle of a turn: workers must be asked to stop
    stop = stop or StopRequest()
    with open_queue(directory) as store, RunLock(directory / LOCK_NAME), stopping_gently(stop):
        dispatcher = Dispatcher(
            store,
            pool,
            directory=directory,
            expect=expect,
            work=work,
            watcher=watcher or SilentQueueWatcher(),
            settings=settings,
            clock=clock,
            stop=stop,
        )
        dispatcher.run()
        return store.tasks()
