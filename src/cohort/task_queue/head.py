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
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.store import QueueStore
from cohort.task_queue.submission import find_changes
from cohort.task_queue.task_states import TaskStates
from cohort.task_queue.view import view_queue
from cohort.task_queue.worker_slots import WorkerSlot, WorkerSlotState

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
        self._worker_slots = {slot.slot_id: WorkerSlot(slot=slot) for slot in pool.slots()}
        self._replanner = Replanner(Cluster(nodes=_by_node(pool.slots())), policy=settings.policy)
        self._task_states = TaskStates(
            store,
            self._log,
            self._replanner,
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
        devices = ", ".join(worker_slot.slot.device for worker_slot in self._worker_slots.values())
        self._log.decide(
            "head",
            text=f"{len(self._worker_slots)} slot{'' if len(self._worker_slots) == 1 else 's'}: {devices}",
            numbers={"none_since_seconds": self._log.last_head_seconds},
        )
        try:
            self._task_states.recover()
            for worker_slot in self._worker_slots.values():
                self._start_worker(worker_slot)
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
            self._task_states.look_at_queue()
        self._plan()
        for worker_slot in self._worker_slots.values():
            self._follow_plan(worker_slot)
        if self._log.now - self._told >= _SECONDS_BETWEEN_UPDATES:
            self._tell()

    def _is_over(self) -> bool:
        if all(worker_slot.is_lost for worker_slot in self._worker_slots.values()) and not self._pool.can_grow:
            raise RunStateError(
                f"no slot is left to work in; see what the workers wrote in {self._directory / 'workers'}, fix it, "
                f"and go on with `cohort resume {self._directory}`"
            )
        if self._settings.keeps_open or self._looked < 0 or self._task_states.events:
            return False
        return not self._store.has_open_tasks() and not any(
            worker_slot.task for worker_slot in self._worker_slots.values()
        )

    def _tell(self) -> None:
        self._told = self._log.now
        self._watcher.update(
            view_queue(
                self._store,
                now=self._log.now,
                replanner=self._replanner,
                worker_slots=self._worker_slots.values(),
                beats=self._task_states.beats,
            )
        )

    def _hear(self, event: PoolEvent) -> None:
        match event:
            case WorkerMessage():
                self._listen(self._worker_slots[event.slot_id], read_message(event.message))
            case WorkerDied():
                self._replace(self._worker_slots[event.slot_id], event.reason)
            case SlotsLost():
                self._lose(event.slot_ids, event.reason)
            case SlotsGained():
                self._log.decide("worker", text=f"slots joined: {', '.join(slot.device for slot in event.slots)}")
                for slot in event.slots:
                    self._worker_slots[slot.slot_id] = WorkerSlot(slot=slot)
                    self._start_worker(self._worker_slots[slot.slot_id])
                    gained = GpusGained(at_seconds=self._log.now, node=slot.node, gpu_ids=(slot.slot_id,))
                    self._task_states.events.append(gained)

    def _listen(self, worker_slot: WorkerSlot, report: object) -> None:
        now = worker_slot.heard = self._log.now
        match report:
            case Ready():
                worker_slot.enter(WorkerSlotState.IDLE, now=now)
                self._was_ready = True
            case Beat():
                worker_slot.beat = report
                if worker_slot.task is not None and report.task == worker_slot.task:
                    self._task_states.heard(worker_slot.task, report)
            case Note(task=task, text=text):
                self._watcher.note(f"{task}: {text}")
            case TaskDone(task=task) if worker_slot.task == task:
                self._release(worker_slot, outcome="done")
                self._task_states.done(task)
            case TaskStopped(task=task) if worker_slot.task == task:
                was_asked = worker_slot.state is WorkerSlotState.STOPPING
                self._release(worker_slot, outcome="stopped")
                self._task_states.stopped(task, was_asked=was_asked)
            case TaskFailed(task=task) if worker_slot.task == task:
                self._release(worker_slot, outcome="failed")
                self._task_states.failed(task, report.message, is_final=report.is_input_error)

    def _replace(self, worker_slot: WorkerSlot, reason: str) -> None:
        """A worker died: its task goes on elsewhere, and another worker takes its place."""
        reason = f"{worker_slot.condemned}, {reason}" if worker_slot.condemned else reason
        task, state = worker_slot.task, worker_slot.state
        self._log.decide("worker", task=task or "", text=f"the worker on {worker_slot.slot.device} died: {reason}")
        if task is not None:
            self._release(worker_slot, outcome="its worker died")
            if state is WorkerSlotState.BUSY:
                self._task_states.failed(task, f"its worker died: {reason}")
            else:
                self._task_states.stopped(task, was_asked=True)
        worker_slot.deaths = worker_slot.deaths + 1 if state is WorkerSlotState.STARTING else 0
        if worker_slot.deaths >= self._settings.limits.deaths_in_a_row:
            self._lose(
                [worker_slot.slot.slot_id],
                f"{worker_slot.deaths} workers in a row died before they could work: {reason}",
            )
        else:
            self._start_worker(worker_slot)

    def _lose(self, slot_ids: Sequence[int], reason: str) -> None:
        tasks = []
        for slot_id in slot_ids:
            worker_slot = self._worker_slots[slot_id]
            if worker_slot.task is not None:
                tasks.append(worker_slot.task)
                self._release(worker_slot, outcome="its slot was lost")
            worker_slot.enter(WorkerSlotState.LOST, now=self._log.now)
        self._task_states.lost_slots(tuple(slot_ids), tasks, reason=reason)

    def _replace_faulty_workers(self) -> None:
        for worker_slot in self._worker_slots.values():
            fault = worker_slot.fault(self._settings.limits, now=self._log.now)
            if fault:
                worker_slot.condemned = fault
                self._pool.kill(worker_slot.slot.slot_id)

    def _start_worker(self, worker_slot: WorkerSlot) -> None:
        worker_slot.condemned, worker_slot.beat = "", None
        worker_slot.enter(WorkerSlotState.STARTING, now=self._log.now)
        self._pool.start(worker_slot.slot.slot_id)

    def _release(self, worker_slot: WorkerSlot, *, outcome: str) -> None:
        """The worker no longer holds its task."""
        assert worker_slot.task is not None, "a worker_slot is released of the task it holds"
        self._store.end_stretches(task=worker_slot.task, seconds=self._log.now, outcome=outcome)
        worker_slot.task = None
        worker_slot.enter(WorkerSlotState.IDLE, now=self._log.now)

    def _plan(self) -> None:
        """Take all that happened to the planner, if anything did."""
        if not self._was_ready and any(
            worker_slot.state is WorkerSlotState.STARTING for worker_slot in self._worker_slots.values()
        ):
            # a plan begins when the first task can
            return
        events, self._task_states.events = self._task_states.events, []
        if not events:
            self._replanner.advance(self._log.now)
            return
        changes = self._replanner.take(events, saved_shares=self._task_states.done_shares())
        only_times = all(isinstance(event, TaskReestimated) for event in events)
        self._log.planned(changes, is_told=not only_times or bool(changes.started or changes.evicted))
        for task in changes.evicted:
            slots = [
                worker_slot.slot.slot_id for worker_slot in self._worker_slots.values() if worker_slot.task == task
            ]
            by = next((name for slot in slots if (name := self._replanner.wanted_in(slot))), "a more urgent task")
            if slots:
                self._task_states.evicted(task, by=by)

    def _follow_plan(self, worker_slot: WorkerSlot) -> None:
        """Let the slot do what the plan wants of it, as far as its worker can."""
        wanted = None if worker_slot.is_lost else self._replanner.wanted_in(worker_slot.slot.slot_id)
        if worker_slot.state is WorkerSlotState.BUSY and worker_slot.task != wanted:
            assert worker_slot.task is not None, "a busy worker has a task"
            worker_slot.enter(WorkerSlotState.STOPPING, now=self._log.now)
            self._pool.send(worker_slot.slot.slot_id, as_message(StopTask(task=worker_slot.task)))
        elif worker_slot.state is WorkerSlotState.IDLE and wanted is not None and self._is_free(wanted):
            self._begin(wanted, worker_slot)

    def _is_free(self, name: str) -> bool:
        """Tell whether nobody works on a task any more: a worker that gives it up, or one of a head that was killed."""
        if any(worker_slot.task == name for worker_slot in self._worker_slots.values()):
            return False
        root = self._directory / name
        holder = RunDirectory(root).lock().holder() if root.is_dir() else None
        if holder is not None and name not in self._waited_for:
            self._waited_for.add(name)
            self._log.decide("note", task=name, text=f"waits until {holder} has left its run directory")
        return holder is None

    def _begin(self, name: str, worker_slot: WorkerSlot) -> None:
        task = self._store.task(name)
        assert task is not None, "the plan holds tasks of the queue"
        run_directory = self._directory / name
        # once it has begun, its run keeps the task, and checks rows and weights itself
        is_new = RunDirectory.find_problem(run_directory) is None
        if is_new and (changes := find_changes(task, directory=self._directory)):
            self._task_states.held(name, changes)
            return
        worker_slot.task, worker_slot.beat = name, None
        worker_slot.enter(WorkerSlotState.BUSY, now=self._log.now)
        slot = worker_slot.slot
        self._store.begin_stretch(
            RunStretch(task=name, slot_id=slot.slot_id, device=slot.device, start_seconds=self._log.now)
        )
        self._task_states.begun(name, device=slot.device)
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
        for worker_slot in self._worker_slots.values():
            if worker_slot.state is WorkerSlotState.BUSY:
                assert worker_slot.task is not None, "a busy worker has a task"
                worker_slot.enter(WorkerSlotState.STOPPING, now=self._log.now)
                self._pool.send(worker_slot.slot.slot_id, as_message(StopTask(task=worker_slot.task)))
        deadline = self._log.now + self._settings.limits.stop_seconds
        while any(worker_slot.task for worker_slot in self._worker_slots.values()) and self._log.now < deadline:
            for event in self._pool.wait(self._settings.poll_seconds):
                if isinstance(event, WorkerMessage):
                    self._listen(self._worker_slots[event.slot_id], read_message(event.message))
                elif isinstance(event, WorkerDied) and self._worker_slots[event.slot_id].task is not None:
                    self._release(self._worker_slots[event.slot_id], outcome="its worker died")
        for task in self._store.tasks():
            if task.state is TaskState.RUNNING:
                self._store.update(task.name, state=TaskState.QUEUED, reason="the queue was stopped")


def _by_node(slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        nodes[slot.node] = (*nodes.get(slot.node, ()), slot.slot_id)
    return nodes
