"""The head of a queue: turns what happens into events, asks the planner, and makes the workers follow the plan.

One loop, one thread. Each turn: hear the workers, replace hung ones, look at the queue on the disk, plan anew if
anything happened, and let every slot do what the plan wants of it. All that a new head needs is in ``queue.db`` and the
run directories, so a head may die at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cohort.cluster.worker_pool import (
    PoolEvent,
    Slot,
    SlotsGained,
    SlotsLost,
    WorkerDied,
    WorkerMessage,
    WorkerPool,
)
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import RunStateError
from cohort.runs.directory import RunDirectory
from cohort.scheduling.placement.cluster_events import GpusGained, TaskReestimated
from cohort.scheduling.placement.records import Cluster
from cohort.task_queue.head_settings import HeadSettings
from cohort.task_queue.log import QueueLog
from cohort.task_queue.messages import (
    Beat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskFailed,
    TaskStopped,
    as_message,
    read_message,
)
from cohort.task_queue.progress import QueueWatcher
from cohort.task_queue.records import QueuedTask, RunStretch, TaskState
from cohort.task_queue.replanner import Placing
from cohort.task_queue.store import QueueStore
from cohort.task_queue.submission import find_changes
from cohort.task_queue.task_states import TaskFates
from cohort.task_queue.view import view_queue
from cohort.task_queue.worker_slots import Seat, SeatState

__all__ = ["Head"]

_SECONDS_BETWEEN_UPDATES = 0.5


class Head:
    """Works one queue off."""

    def __init__(
        self,
        store: QueueStore,
        pool: WorkerPool,
        *,
        directory: Path,
        expect: Callable[[QueuedTask], float],
        watcher: QueueWatcher,
        settings: HeadSettings | None = None,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Join the parts.

        Args:
            store: The queue; the caller holds its lock.
            pool: Where workers run; closed at the end.
            directory: Of the queue; run directories are in it.
            expect: Seconds that a task has left, at worst; raises InputError for one that cannot run here.
            watcher: Told of progress.
            settings: See :class:`HeadSettings`.
            clock: Of the queue.
            stop: Set by whoever wants all tasks to save their state and stop.
        """
        self._store, self._pool, self._directory, self._watcher = store, pool, directory, watcher
        self._settings = settings = settings or HeadSettings()
        self._clock = clock or SystemClock()
        self._stop = stop or threading.Event()
        self._log = QueueLog(store, clock=self._clock, watcher=watcher)
        self._seats = {slot.slot_id: Seat(slot=slot) for slot in pool.slots()}
        self._placing = Placing(Cluster(nodes=_by_node(pool.slots())), policy=settings.policy)
        self._fates = TaskFates(
            store,
            self._log,
            self._placing,
            directory=directory,
            expect=expect,
            most_attempts=settings.limits.attempts,
            reestimate_share=settings.reestimate_share,
            reestimate_seconds=settings.reestimate_seconds,
        )
        self._looked = self._told = float("-inf")
        self._waited_for: set[str] = set()
        self._was_ready = False

    def run(self) -> None:
        """Go on until every task has ended.

        Raises:
            KeyboardInterrupt: asked to stop; every task has saved its state.
            RunStateError: no slot is left.
        """
        if not self._settings.keeps_open and not self._store.has_open_tasks():
            # what has ended needs no worker
            self._pool.close()
            return
        devices = ", ".join(seat.slot.device for seat in self._seats.values())
        self._log.decide(
            "head",
            text=f"{len(self._seats)} slot{'' if len(self._seats) == 1 else 's'}: {devices}",
            numbers={"none_since_seconds": self._log.last_head_seconds},
        )
        try:
            self._fates.recover()
            for seat in self._seats.values():
                self._start_worker(seat)
            while not self._is_over():
                if self._stop.is_set():
                    self._stop_all()
                    raise KeyboardInterrupt
                self._turn()
        finally:
            self._pool.close()
            self._store.end_stretches(task=None, seconds=self._log.now, outcome="the head ended")
            self._log.note_presence(at_once=True)
            self._tell()

    def _turn(self) -> None:
        for event in self._pool.wait(self._settings.poll_seconds):
            self._hear(event)
        self._replace_faulty_workers()
        if self._log.now - self._looked >= self._settings.look_seconds:
            self._looked = self._log.now
            self._log.note_presence()
            self._fates.look_at_queue()
        self._plan()
        for seat in self._seats.values():
            self._follow_plan(seat)
        if self._log.now - self._told >= _SECONDS_BETWEEN_UPDATES:
            self._tell()

    def _is_over(self) -> bool:
        if all(seat.is_lost for seat in self._seats.values()) and not self._pool.can_grow:
            raise RunStateError(
                f"no slot is left to work in; see what the workers wrote in {self._directory / 'workers'}, mend it, "
                f"and go on with `cohort resume {self._directory}`"
            )
        if self._settings.keeps_open or self._looked < 0 or self._fates.events:
            return False
        return not self._store.has_open_tasks() and not any(seat.task for seat in self._seats.values())

    def _tell(self) -> None:
        self._told = self._log.now
        self._watcher.update(
            view_queue(
                self._store,
                now=self._log.now,
                placing=self._placing,
                seats=self._seats.values(),
                beats=self._fates.beats,
            )
        )

    def _hear(self, event: PoolEvent) -> None:
        match event:
            case WorkerMessage():
                self._listen(self._seats[event.slot_id], read_message(event.message))
            case WorkerDied():
                self._replace(self._seats[event.slot_id], event.reason)
            case SlotsLost():
                self._lose(event.slot_ids, event.reason)
            case SlotsGained():
                self._log.decide("worker", text=f"slots joined: {', '.join(slot.device for slot in event.slots)}")
                for slot in event.slots:
                    self._seats[slot.slot_id] = Seat(slot=slot)
                    self._start_worker(self._seats[slot.slot_id])
                    gained = GpusGained(at_seconds=self._log.now, node=slot.node, gpu_ids=(slot.slot_id,))
                    self._fates.events.append(gained)

    def _listen(self, seat: Seat, report: object) -> None:
        now = seat.heard = self._log.now
        match report:
            case Ready():
                seat.enter(SeatState.IDLE, now=now)
                self._was_ready = True
            case Beat():
                seat.beat = report
                if seat.task is not None and report.task == seat.task:
                    self._fates.heard(seat.task, report)
            case Note(task=task, text=text):
                self._watcher.note(f"{task}: {text}")
            case TaskDone(task=task) if seat.task == task:
                self._release(seat, outcome="done")
                self._fates.done(task)
            case TaskStopped(task=task) if seat.task == task:
                was_asked = seat.state is SeatState.STOPPING
                self._release(seat, outcome="stopped")
                self._fates.stopped(task, was_asked=was_asked)
            case TaskFailed(task=task) if seat.task == task:
                self._release(seat, outcome="failed")
                self._fates.failed(task, report.message, is_final=report.is_input_error)

    def _replace(self, seat: Seat, reason: str) -> None:
        """A worker died: its task goes on elsewhere, and another worker takes its place."""
        reason = f"{seat.condemned}, {reason}" if seat.condemned else reason
        task, state = seat.task, seat.state
        self._log.decide("worker", task=task or "", text=f"the worker on {seat.slot.device} died: {reason}")
        if task is not None:
            self._release(seat, outcome="its worker died")
            if state is SeatState.BUSY:
                self._fates.failed(task, f"its worker died: {reason}")
            else:
                self._fates.stopped(task, was_asked=True)
        seat.deaths = seat.deaths + 1 if state is SeatState.STARTING else 0
        if seat.deaths >= self._settings.limits.deaths_in_a_row:
            self._lose([seat.slot.slot_id], f"{seat.deaths} workers in a row died before they could work: {reason}")
        else:
            self._start_worker(seat)

    def _lose(self, slot_ids: Sequence[int], reason: str) -> None:
        tasks = []
        for slot_id in slot_ids:
            seat = self._seats[slot_id]
            if seat.task is not None:
                tasks.append(seat.task)
                self._release(seat, outcome="its slot was lost")
            seat.enter(SeatState.LOST, now=self._log.now)
        self._fates.lost_slots(tuple(slot_ids), tasks, reason=reason)

    def _replace_faulty_workers(self) -> None:
        for seat in self._seats.values():
            fault = seat.fault(self._settings.limits, now=self._log.now)
            if fault:
                seat.condemned = fault
                self._pool.kill(seat.slot.slot_id)

    def _start_worker(self, seat: Seat) -> None:
        seat.condemned, seat.beat = "", None
        seat.enter(SeatState.STARTING, now=self._log.now)
        self._pool.start(seat.slot.slot_id)

    def _release(self, seat: Seat, *, outcome: str) -> None:
        """The worker no longer holds its task."""
        assert seat.task is not None, "a seat is released of the task it holds"
        self._store.end_stretches(task=seat.task, seconds=self._log.now, outcome=outcome)
        seat.task = None
        seat.enter(SeatState.IDLE, now=self._log.now)

    def _plan(self) -> None:
        """Take all that happened to the planner, if anything did."""
        if not self._was_ready and any(seat.state is SeatState.STARTING for seat in self._seats.values()):
            # a plan begins when the first task can
            return
        events, self._fates.events = self._fates.events, []
        if not events:
            self._placing.advance(self._log.now)
            return
        changes = self._placing.take(events, saved_shares=self._fates.done_shares())
        only_times = all(isinstance(event, TaskReestimated) for event in events)
        self._log.planned(changes, is_told=not only_times or bool(changes.started or changes.evicted))
        for task in changes.evicted:
            slots = [seat.slot.slot_id for seat in self._seats.values() if seat.task == task]
            by = next((name for slot in slots if (name := self._placing.wanted_in(slot))), "a more urgent task")
            if slots:
                self._fates.evicted(task, by=by)

    def _follow_plan(self, seat: Seat) -> None:
        """Let the slot do what the plan wants of it, as far as its worker can."""
        wanted = None if seat.is_lost else self._placing.wanted_in(seat.slot.slot_id)
        if seat.state is SeatState.BUSY and seat.task != wanted:
            assert seat.task is not None, "a busy worker has a task"
            seat.enter(SeatState.STOPPING, now=self._log.now)
            self._pool.send(seat.slot.slot_id, as_message(StopTask(task=seat.task)))
        elif seat.state is SeatState.IDLE and wanted is not None and self._is_free(wanted):
            self._begin(wanted, seat)

    def _is_free(self, name: str) -> bool:
        """Tell whether nobody works on a task any more: a worker that gives it up, or one of a head that was killed."""
        if any(seat.task == name for seat in self._seats.values()):
            return False
        root = self._directory / name
        holder = RunDirectory(root).lock().holder() if root.is_dir() else None
        if holder is not None and name not in self._waited_for:
            self._waited_for.add(name)
            self._log.decide("note", task=name, text=f"waits until {holder} has left its run directory")
        return holder is None

    def _begin(self, name: str, seat: Seat) -> None:
        task = self._store.task(name)
        assert task is not None, "the plan holds tasks of the queue"
        run_directory = self._directory / name
        # once it has begun, its run keeps the task, and checks rows and weights itself
        is_new = RunDirectory.find_problem(run_directory) is None
        if is_new and (changes := find_changes(task, directory=self._directory)):
            self._fates.held(name, changes)
            return
        seat.task, seat.beat = name, None
        seat.enter(SeatState.BUSY, now=self._log.now)
        slot = seat.slot
        self._store.begin_stretch(
            RunStretch(task=name, slot_id=slot.slot_id, device=slot.device, start_seconds=self._log.now)
        )
        self._fates.begun(name, device=slot.device)
        order = RunTask(
            task=name,
            source=task.source,
            resolved=task.task,
            run_directory=str(run_directory),
            options=asdict(self._settings.options),
        )
        self._pool.send(slot.slot_id, as_message(order))

    def _stop_all(self) -> None:
        """Let every task save its state."""
        self._log.decide("head", text="asked to stop: every task saves its state")
        for seat in self._seats.values():
            if seat.state is SeatState.BUSY:
                assert seat.task is not None, "a busy worker has a task"
                seat.enter(SeatState.STOPPING, now=self._log.now)
                self._pool.send(seat.slot.slot_id, as_message(StopTask(task=seat.task)))
        deadline = self._log.now + self._settings.limits.stop_seconds
        while any(seat.task for seat in self._seats.values()) and self._log.now < deadline:
            for event in self._pool.wait(self._settings.poll_seconds):
                if isinstance(event, WorkerMessage):
                    self._listen(self._seats[event.slot_id], read_message(event.message))
                elif isinstance(event, WorkerDied) and self._seats[event.slot_id].task is not None:
                    self._release(self._seats[event.slot_id], outcome="its worker died")
        for task in self._store.tasks():
            if task.state is TaskState.RUNNING:
                self._store.update(task.name, state=TaskState.QUEUED, reason="the queue was stopped")


def _by_node(slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        nodes[slot.node] = (*nodes.get(slot.node, ()), slot.slot_id)
    return nodes
