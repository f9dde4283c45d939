"""The tasks that a worker trains together: each begins or goes on in one session, and may come, leave or fail alone.

The first task's inputs are read by the thread that trains. Those that join are read by a thread of their own, while
the others train on.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from cohort.core.errors import CohortError, InputError
from cohort.engine.session import Session
from cohort.engine.session_task import TaskEnd
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import RunOptions
from cohort.runs.directory import RunDirectory
from cohort.runs.results.task_result import TasksFailedError
from cohort.task_queue.workers.messages import (
    CannotShare,
    RunTask,
    TaskDone,
    TaskError,
    TaskStopped,
    WorkerReport,
)
from cohort.tasks.loading import task_from_mapping

__all__ = ["SharedRuns", "error_report"]


class SharedRuns:
    """Tasks in one executor. :meth:`join` and :meth:`stop` may be called from any thread while :meth:`run` trains."""

    def __init__(
        self, first: RunTask, *, tell: Callable[[str, WorkerReport], None], watcher_of: Callable[[str], ProgressWatcher]
    ) -> None:
        """Take the first task; ``tell`` receives how each ends, ``watcher_of`` returns who watches a task."""
        self._first, self._tell, self._watcher_of = first, tell, watcher_of
        self._session = Session(options=RunOptions(**first.options), on_end=self._ended)
        # guards what follows: whether a task still finds the session open must not change while it is handed in
        self._lock = threading.Lock()
        self._held: set[str] = {first.task}
        # asked to leave, maybe before they were handed in
        self._leaving: set[str] = set()
        self._joining: list[threading.Thread] = []
        self._is_open, self._is_training = True, False

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks that have not ended."""
        return frozenset(self._held)

    @property
    def free_share(self) -> float:
        """Share of a step's tokens that the tasks leave free."""
        return self._session.free_share

    def run(self) -> None:
        """Train until all tasks have ended, each of which is reported then.

        An error that ends all of them at once is reported for each.
        """
        try:
            self._begin(self._first)
            while True:
                # a task that is handed in when the last has ended begins another round
                with self._lock:
                    self._joining = [thread for thread in self._joining if thread.is_alive()]
                    self._is_open = bool(self._joining) or self._session.has_submitted
                    joining = tuple(self._joining)
                if not self._is_open:
                    return
                if not self._session.has_submitted:
                    for thread in joining:
                        thread.join()
                    continue
                self._train()
        except KeyboardInterrupt:
            self._end_all(lambda task: TaskStopped(task=task))
        except Exception as error:
            # lambdas outlive the name of an exception
            found = error
            self._end_all(lambda task: error_report(task, found))
        finally:
            with self._lock:
                self._is_open = False

    def join(self, order: RunTask) -> bool:
        """Have a further task begin or go on in the session; return False if the last task has just ended."""
        with self._lock:
            if not self._is_open:
                return False
            self._held.add(order.task)
            self._leaving.discard(order.task)
            thread = threading.Thread(target=self._begin_beside, args=(order,), daemon=True)
            self._joining.append(thread)
            thread.start()
        return True

    def stop(self, task: str) -> bool:
        """Have a task save its state and leave at the next step boundary, if it is in training by then.

        Returns:
            False: it is not here, or it is the first one and nothing is saved yet; a signal stops that.
        """
        with self._lock:
            if task not in self._held or (task == self._first.task and not self._is_training):
                return False
            self._leaving.add(task)
            self._session.leave(task)
        return True

    def _train(self) -> None:
        self._is_training = True
        try:
            self._session.run()
        except TasksFailedError:
            # each was reported when it ended
            pass
        finally:
            self._is_training = False

    def _begin_beside(self, order: RunTask) -> None:
        try:
            self._begin(order)
            with self._lock:
                # handing a task in forgets what was asked before
                if order.task in self._leaving:
                    self._session.leave(order.task)
        except Exception as error:
            # what is wrong with the task itself shows when it runs alone; nothing of it was written here
            self._report(order.task, CannotShare(task=order.task, reason=str(error).splitlines()[0]))

    def _begin(self, order: RunTask) -> None:
        """Hand a task in, as a new one or from where its run directory stands."""
        directory, watcher = Path(order.run_directory), self._watcher_of(order.task)
        # the directory alone decides: the worker that had the task before may have died at any moment
        if RunDirectory.find_problem(directory) is None:
            task = task_from_mapping(order.resolved, base_directory=Path("/"), name=order.source)
            self._session.submit(task, directory, name=order.task, watcher=watcher)
        elif not self._session.resume(directory, name=order.task, watcher=watcher):
            self._report(order.task, TaskDone(task=order.task))

    def _ended(self, end: TaskEnd) -> None:
        if end.has_left:
            self._report(end.name, TaskStopped(task=end.name))
        elif end.error is None:
            self._report(end.name, TaskDone(task=end.name))
        else:
            self._report(end.name, error_report(end.name, end.error))

    def _end_all(self, report: Callable[[str], WorkerReport]) -> None:
        with self._lock:
            self._is_open = False
            joining = tuple(self._joining)
        # they hold locks of run directories, which the dispatcher may give to another worker at once
        for thread in joining:
            thread.join()
        self._session.close()
        for task in sorted(self._held):
            self._report(task, report(task))

    def _report(self, task: str, report: WorkerReport) -> None:
        with self._lock:
            if task not in self._held:
                return
            self._held.discard(task)
        self._tell(task, report)


def error_report(task: str, error: Exception) -> TaskError:
    """Return the report of a task that an error ended."""
    if isinstance(error, InputError):
        return TaskError(task=task, message=str(error), is_input_error=True)
    if isinstance(error, CohortError):
        return TaskError(task=task, message=str(error))
    # the worker's log keeps where it happened; the worker itself goes on
    traceback.print_exception(error)
    return TaskError(task=task, message=f"{type(error).__name__}: {error}")
