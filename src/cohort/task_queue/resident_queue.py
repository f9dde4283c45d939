"""A queue whose tasks train on the base model of this process: a dispatcher in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.core.process.interrupts import StopRequest
from cohort.core.source_location import Place
from cohort.engine.resident.sweeps import Sweeps
from cohort.machine.devices import hardware_of
from cohort.runs.directory import QUEUE_DATABASE
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import refuse_a_run, work_off
from cohort.task_queue.records import TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore, open_queue, queue_holder
from cohort.task_queue.workers.resident_pool import ResidentPool

__all__ = ["ResidentQueue", "require_queue"]

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 5.0


def require_queue(directory: Path, *, where: Place) -> None:
    """Check that this process can work off the queue in ``directory``, and make one where there is none.

    Raises:
        InputError: it is a run or a file, or another process works the queue off.
    """
    refuse_a_run(directory)
    if directory.exists() and not directory.is_dir():
        raise InputError(
            Problem(where=where, found=f"{directory}, which is a file", allowed="a folder", hint="Name a folder.")
        )
    holder = queue_holder(directory) if directory.is_dir() else None
    if holder is not None:
        raise InputError(
            Problem(
                where=where,
                found=f"{directory}, a queue that {holder} works off",
                allowed="a queue that no other process works off",
                hint="End that process, or name another folder.",
            )
        )
    directory.mkdir(parents=True, exist_ok=True)
    QueueStore.open(directory / QUEUE_DATABASE, create=True).close()


class ResidentQueue:
    """Works a queue off on one base, for as long as the process lives."""

    def __init__(
        self, directory: Path, sweeps: Sweeps, *, on_done: Callable[[str, Path], None] = lambda *_: None
    ) -> None:
        """Work off the queue in ``directory`` once started.

        Args:
            on_done: Called with a task that is done and its run directory, in a thread of this queue.
        """
        self._directory, self._sweeps, self._on_done = directory, sweeps, on_done
        self._stop, self._ended = StopRequest(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="cohort-queue", daemon=True)

    @property
    def directory(self) -> Path:
        return self._directory

    def done(self) -> list[tuple[str, Path]]:
        """Return the tasks that are done, with their run directories."""
        with open_queue(self._directory) as store:
            return [(task.name, self._directory / task.name) for task in store.tasks() if task.state is TaskState.DONE]

    def start(self) -> None:
        self._sweeps.start()
        self._thread.start()

    def close(self) -> None:
        """Have all tasks save their states; the next process goes on with them."""
        self._stop.set()
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._sweeps.close()

    def _run(self) -> None:
        machine = self._sweeps.base.machine
        expect = ExpectedTime(self._directory, hardware_of(machine), slots_of_node=1, most_gpus=1)
        # the base decides whose turn it is: tasks are handed to it as they come
        settings = DispatcherSettings(keeps_open=True, policy=ListPolicy.FIRST_COME)
        while not self._stop.is_set():
            pool = ResidentPool(
                self._sweeps,
                device=machine.device_name,
                is_cpu=machine.device.type == "cpu",
                on_done=self._on_done,
            )
            try:
                work_off(self._directory, pool, expect=expect, settings=settings, stop=self._stop)
            except KeyboardInterrupt:
                return
            except Exception:
                # a full disk, or a database that somebody holds: all save their states, and begin again with the queue
                _log.exception("the queue in %s is looked at again in %.0f s", self._directory, _RETRY_SECONDS)
                for name in self._sweeps.names:
                    self._sweeps.leave(name)
                self._ended.wait(_RETRY_SECONDS)
