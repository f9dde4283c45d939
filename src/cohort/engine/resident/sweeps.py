"""Tasks that train on a resident base, while requests and clients use it: handed in, parked, ended at any time.

Two threads. A clerk reads the inputs of tasks and hands them in, in the order of shares; the other trains them in one
session. Tasks that cannot share its bank wait until it is empty, and begin the next one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cohort.engine.resident.resident_base import ResidentBase
from cohort.engine.resident.seats import SeatedTask, next_seat
from cohort.engine.session import Session
from cohort.engine.session_task import TaskEnd, task_error
from cohort.engine.shared_fit import CannotShareError
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.runs.directory import RunDirectory
from cohort.tasks.task_file import TaskFile

__all__ = ["SweepOrder", "Sweeps"]

_log = logging.getLogger(__name__)

MOST_TASKS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepOrder:
    """A task to train, or to go on with where its run directory holds a run.

    Attributes:
        name: Unique among those that have not ended.
        read: Returns the task; not called where its run goes on.
        tenant: Whose share of the base it uses.
        weight: The tenant's from now on.
        on_end: Hears how it ended, in some thread; its run directory is free then.
    """

    name: str
    read: Callable[[], TaskFile]
    run_directory: Path
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    watcher: ProgressWatcher | None = None
    on_end: Callable[[TaskEnd], None] = lambda _: None

    @property
    def seated(self) -> SeatedTask:
        return SeatedTask(name=self.name, tenant=self.tenant, priority=self.priority)


class Sweeps:
    """Trains tasks on one base. All methods may be called from any thread."""

    def __init__(self, base: ResidentBase, *, options: RunOptions | None = None, num_seats: int = MOST_TASKS) -> None:
        """Train on ``base`` once started.

        Args:
            options: How all runs are carried out.
            num_seats: Most tasks that train at once; others wait, or take the seat of a tenant that has more.
        """
        self._base, self._options, self._num_seats = base, options or RunOptions(), num_seats
        self._changed = threading.Condition()
        self._waiting: list[SweepOrder] = []
        self._seated: dict[str, SweepOrder] = {}
        # tasks in order that cannot share the session's bank
        self._apart: list[SweepOrder] = []
        # asked to leave: for good, or to come back when there is a seat
        self._leaving: set[str] = set()
        self._parking: set[str] = set()
        self._is_closing = False
        self._session = self._new_session()
        self._threads = [
            threading.Thread(target=self._seat_tasks, name="cohort-sweep-clerk", daemon=True),
            threading.Thread(target=self._train, name="cohort-sweeps", daemon=True),
        ]

    @property
    def base(self) -> ResidentBase:
        return self._base

    @property
    def names(self) -> list[str]:
        """Tasks that have not ended."""
        with self._changed:
            return [*self._seated, *(order.name for order in (*self._waiting, *self._apart))]

    @property
    def waiting(self) -> list[str]:
        """Tasks that wait for a seat."""
        with self._changed:
            return [order.name for order in self._waiting]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, order: SweepOrder) -> None:
        """Take a task in; its ``on_end`` gets how it ends, also what is wrong with it.

        Raises:
            InputError: the weight is not a finite number above 0.
        """
        with self._changed:
            assert order.name not in self.names, f"{order.name} is there already"
            self._base.turns.weigh(order.tenant, order.weight)
            self._waiting.append(order)
            self._changed.notify_all()

    def leave(self, name: str) -> None:
        """Have a task save its state and end; one that has ended, or is not there, is not asked."""
        with self._changed:
            for orders in (self._waiting, self._apart):
                for order in [order for order in orders if order.name == name]:
                    orders.remove(order)
                    # outside of the lock it could be handed in again before its end is reported
                    order.on_end(TaskEnd(name=name, has_left=True))
            if name in self._seated:
                self._leaving.add(name)
                self._session.leave(name)

    def close(self) -> None:
        """Have all tasks save their states, and end the threads."""
        for name in self.names:
            self.leave(name)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._session.close()

    def _new_session(self) -> Session:
        device = self._base.machine.device
        return Session(
            options=self._options,
            num_gpus=0 if device.type == "cpu" else 1,
            on_end=self._ended,
            base=self._base.shared(),
        )

    # the clerk

    def _seat_tasks(self) -> None:
        while (order := self._next()) is not None:
            try:
                self._begin(order)
            except CannotShareError as error:
                self._part(order, error)
            except Exception as error:
                _log.debug("task %s could not begin", order.name, exc_info=True)
                self._end(order, TaskEnd(name=order.name, error=task_error(order.run_directory, error, "begin")))
            with self._changed:
                # handing a task in forgets what was asked before
                if order.name in self._leaving | self._parking:
                    self._session.leave(order.name)
                self._changed.notify_all()

    def _next(self) -> SweepOrder | None:
        """Wait for a task that may begin, and seat it; None once the sweeps close."""
        with self._changed:
            while True:
                if self._is_closing and not self._seated:
                    return None
                # who waits for an empty bank would wait for ever if others took the seats
                if not self._apart and not self._is_closing and (order := self._take()) is not None:
                    return order
                self._changed.wait()

    def _take(self) -> SweepOrder | None:
        seated = [order.seated for order in self._seated.values() if order.name not in self._parking]
        change = next_seat(
            [order.seated for order in self._waiting],
            seated,
            num_seats=self._num_seats,
            weight=self._base.turns.weight,
        )
        if change is None:
            return None
        if change.parks is not None:
            self._parking.add(change.parks)
            self._session.leave(change.parks)
        order = next(order for order in self._waiting if order.name == change.begins)
        self._waiting.remove(order)
        self._seated[order.name] = order
        return order

    def _begin(self, order: SweepOrder) -> None:
        watcher = order.watcher or SilentWatcher()
        # the directory alone decides: the process that had the task before may have died at any moment
        if RunDirectory.find_problem(order.run_directory) is None:
            self._session.submit(
                order.read(), order.run_directory, name=order.name, watcher=watcher, tenant=order.tenant
            )
        elif not self._session.resume(order.run_directory, name=order.name, watcher=watcher, tenant=order.tenant):
            self._end(order, TaskEnd(name=order.name))

    def _part(self, order: SweepOrder, error: CannotShareError) -> None:
        with self._changed:
            has_others = len(self._seated) > 1
            if has_others:
                del self._seated[order.name]
                self._apart.append(order)
                return
            is_fresh = self._session.is_fresh
        if is_fresh:
            self._end(order, TaskEnd(name=order.name, error=error))
            return
        with self._changed:
            # no task trains: the bank is free for another kind of task
            del self._seated[order.name]
            self._apart.append(order)

    # the thread that trains

    def _train(self) -> None:
        while self._wait_for_tasks():
            try:
                # how each ends is reported when it does
                self._session.train()
            except Exception as error:
                _log.exception("the tasks of this base ended together")
                self._lose(error)

    def _wait_for_tasks(self) -> bool:
        with self._changed:
            while not self._session.has_submitted:
                if self._is_closing and not self._seated:
                    return False
                if self._apart and not self._seated:
                    # another bank, for those that could not share the last one
                    self._session.close()
                    self._session = self._new_session()
                    self._waiting, self._apart = [*self._apart, *self._waiting], []
                    self._changed.notify_all()
                self._changed.wait()
        return True

    def _lose(self, error: Exception) -> None:
        with self._changed:
            orders = [*self._seated.values()]
            self._session = self._new_session()
        for order in orders:
            self._end(order, TaskEnd(name=order.name, error=task_error(order.run_directory, error, "go on")))

    # how tasks end

    def _ended(self, end: TaskEnd) -> None:
        with self._changed:
            order = self._seated.get(end.name)
        if order is not None:
            self._end(order, end)

    def _end(self, order: SweepOrder, end: TaskEnd) -> None:
        with self._changed:
            if self._seated.pop(order.name, None) is None:
                return
            was_parked = order.name in self._parking and order.name not in self._leaving
            self._parking.discard(order.name)
            self._leaving.discard(order.name)
            goes_on = end.has_left and was_parked and not self._is_closing
            if goes_on:
                # first in line again among its tenant's
                self._waiting.insert(0, order)
            self._changed.notify_all()
        if not goes_on:
            order.on_end(end)
