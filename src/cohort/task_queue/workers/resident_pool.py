"""A pool whose workers are this process: tasks of a queue train on a base model that also serves.

Each slot is a seat for one task. There is always a free one, so every task of the queue comes to the base at once;
there the shares of tenants decide whose turn it is.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cohort.engine.resident.sweeps import SweepOrder, Sweeps
from cohort.engine.session_task import TaskEnd
from cohort.engine.train.watching.progress import RunProgress
from cohort.machine.cluster.worker_pool import Message, PoolEvent, Slot, SlotsGained, WorkerDied, WorkerMessage
from cohort.task_queue.workers.messages import (
    Heartbeat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskStopped,
    WorkerReport,
    as_message,
    read_message,
)
from cohort.task_queue.workers.run_heartbeat import heartbeat_of
from cohort.task_queue.workers.shared_runs import error_report
from cohort.tasks.loading import task_from_mapping

__all__ = ["ResidentPool"]

_FIRST_SEATS, _MOST_SEATS = 4, 4096
_HEARTBEAT_SECONDS = 0.25


class ResidentPool:
    """Seats at one base. The dispatcher's thread calls it; reports come from the threads that train."""

    can_grow = True

    def __init__(
        self, sweeps: Sweeps, *, device: str, is_cpu: bool, on_done: Callable[[str, Path], None] = lambda *_: None
    ) -> None:
        """Seat tasks at the base of ``sweeps``.

        Args:
            device: What it computes on, in words.
            on_done: Called in the dispatcher's thread with a task that is done and its run directory.
        """
        self._sweeps, self._device, self._is_cpu, self._on_done = sweeps, device, is_cpu, on_done
        self._slots: dict[int, Slot] = {}
        self._events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        # by slot, and by task the directory that it runs in
        self._tasks: dict[int, str] = {}
        self._directories: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._beats: dict[int, Heartbeat] = {}
        self._beaten_at = float("-inf")
        self._add_slots(_FIRST_SEATS)

    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots.values())

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        assert not also, "a task has one seat"
        self._tell(slot_id, Ready(process_id=os.getpid()))

    def send(self, slot_id: int, message: Message) -> None:
        match read_message(message):
            case RunTask() as order:
                self._seat(slot_id, order)
            case StopTask(task=task):
                self._sweeps.leave(task)

    def kill(self, slot_id: int) -> None:
        """Have the seat's task leave: the process serves on."""
        if (task := self._tasks.get(slot_id)) is not None:
            self._sweeps.leave(task)
        self._events.put(WorkerDied(slot_id=slot_id, reason="its task was asked to leave"))

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        found: list[PoolEvent] = []
        try:
            found.append(self._events.get(timeout=timeout_seconds))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for event in found:
            if isinstance(event, WorkerMessage) and event.message["kind"] == TaskDone.__name__:
                self._on_done(event.message["task"], self._directories[event.message["task"]])
        return [*found, *self._heartbeats()]

    def close(self) -> None:
        """Nothing: the base and its sweeps are their owner's."""

    def _add_slots(self, count: int) -> tuple[Slot, ...]:
        first = len(self._slots)
        added = tuple(
            Slot(slot_id=number, node="local", device=f"{self._device}, seat {number}", is_cpu=self._is_cpu)
            for number in range(first, first + count)
        )
        self._slots |= {slot.slot_id: slot for slot in added}
        return added

    def _seat(self, slot_id: int, order: RunTask) -> None:
        self._tasks[slot_id] = order.task
        self._directories[order.task] = Path(order.run_directory)
        taken = len(self._tasks)
        if taken == len(self._slots) < _MOST_SEATS:
            self._events.put(SlotsGained(slots=self._add_slots(taken)))
        self._sweeps.submit(
            SweepOrder(
                name=order.task,
                read=lambda: task_from_mapping(order.resolved, base_directory=Path("/"), name=order.source),
                run_directory=Path(order.run_directory),
                tenant=order.tenant,
                weight=order.weight,
                priority=order.priority,
                watcher=_SeatWatcher(self, slot_id, order.task),
                on_end=lambda end: self._ended(slot_id, end),
            )
        )

    def _ended(self, slot_id: int, end: TaskEnd) -> None:
        with self._lock:
            # first: a heartbeat about it would follow the report of its end
            self._beats.pop(slot_id, None)
            self._tasks.pop(slot_id, None)
        report: WorkerReport = TaskDone(task=end.name)
        if end.has_left:
            report = TaskStopped(task=end.name)
        elif end.error is not None:
            report = error_report(end.name, end.error)
        self._tell(slot_id, report)

    def _tell(self, slot_id: int, report: WorkerReport) -> None:
        self._events.put(WorkerMessage(slot_id=slot_id, message=as_message(report)))

    def _heartbeats(self) -> list[PoolEvent]:
        now = time.monotonic()
        if now - self._beaten_at < _HEARTBEAT_SECONDS:
            return []
        self._beaten_at = now
        with self._lock:
            beats = {slot_id: self._beats.get(slot_id, Heartbeat()) for slot_id in self._slots}
        return [WorkerMessage(slot_id=slot_id, message=as_message(beat)) for slot_id, beat in beats.items()]

    def moved(self, slot_id: int, beat: Heartbeat) -> None:
        """Take in where a run stands."""
        with self._lock:
            if self._tasks.get(slot_id) == beat.task:
                self._beats[slot_id] = beat

    def said(self, slot_id: int, task: str, text: str) -> None:
        self._tell(slot_id, Note(task=task, text=text))


class _SeatWatcher:
    """Watches one run for the dispatcher."""

    def __init__(self, pool: ResidentPool, slot_id: int, task: str) -> None:
        self._pool, self._slot_id, self._task = pool, slot_id, task

    def update(self, progress: RunProgress) -> None:
        self._pool.moved(self._slot_id, heartbeat_of(self._task, progress))

    def note(self, text: str) -> None:
        self._pool.said(self._slot_id, self._task, text)
