"""The dispatcher of a queue: turns what happens into events, asks the planner, and makes the workers follow the plan.

One loop, one thread. Each turn: take the workers' messages, kill workers that hang, look at the queue on the disk, plan
again if anything happened, and bring every slot closer to the plan. All that a new dispatcher needs is in ``queue.db``
and the run directories, so a dispatcher may die at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
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
from cohort.core.units import counted
from cohort.runs.directory import RunDirectory
from cohort.scheduling.cost.shared_time import LEAST_ROOM, SharedWork
from cohort.scheduling.placement.cluster_events import GpusGained, RoomFound, TaskReestimated
from cohort.scheduling.placement.records import Cluster
from cohort.task_queue.gangs import Gangs
from cohort.task_queue.log import QueueLog
from cohort.task_queue.messages import (
    CannotShare,
    Heartbeat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskError,
    TaskStopped,
    as_message,
    read_message,
)
from cohort.task_queue.progress import QueueWatcher, view_queue
from cohort.task_queue.records import Expecting, QueuedTask, RunStretch, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.submission import find_changes
from cohort.task_queue.task_states import TaskStates
from cohort.task_queue.worker_slots import WorkerSlot, WorkerSlotState

__all__ = ["Dispatcher"]

# every update reads the whole queue from the disk
_SECONDS_BETWEEN_UPDATES = 0.5


class Dispatcher:
    """Works one queue off."""

    def __init__(
        self,
        store: QueueStore,
        pool: WorkerPool,
        *,
        directory: Path,
        expect: Expecting,
        watcher: QueueWatcher,
        work: Callable[[QueuedTask], SharedWork | None] | None = None,
        settings: DispatcherSettings | None = None,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Take a queue and its workers.

        Args:
            store: The queue; the caller holds its lock.
            pool: Where workers run; closed at the end.
            directory: The queue's directory, which holds the run directories.
            expect: Returns the numbers of slots a task may have and its seconds on each at worst; raises InputError for
                a task that cannot run here.
            work: Returns what is left of a task in an executor that it could share; None where it shares with none.
            stop: Set by the caller to make all tasks save their state and stop.
        """
        self._store, self._pool, self._directory, self._watcher = store, pool, directory, watcher
        self._settings = settings = settings or DispatcherSettings()
        self._stop = stop or threading.Event()
        self._log = QueueLog(store, clock=clock or SystemClock(), watcher=watcher)
        self._slots = {slot.slot_id: WorkerSlot(slot=slot) for slot in pool.slots()}
        self._replanner = Replanner(Cluster(nodes=_by_node(pool.slots())), policy=settings.policy)
        self._gangs = Gangs(self._slots, pool, now=lambda: self._log.now)
        self._task_states = TaskStates(
            store,
            self._log,
            self._replanner,
            directory=directory,
            expect=expect,
            work=work,
            settings=settings,
            can_grow=pool.can_grow,
        )
        self._looked_at = self._updated_at = float("-inf")
        self._waited_for: set[str] = set()
        self._was_ready = False

    def run(self) -> None:
        """Run until every task has ended.

        Raises:
            KeyboardInterrupt: asked to stop; every task has saved its state.
            RunStateError: no slot is left.
        """
        if not self._settings.keeps_open and not self._store.has_open_tasks():
            # starting workers takes seconds (torch is imported), and here they would have nothing to do
            self._pool.close()
            return
        devices = ", ".join(slot.slot.device for slot in self._slots.values())
        self._log.decide(
            "dispatcher",
            text=f"{counted(len(self._slots), 'slot')}: {devices}",
            numbers={"none_since_seconds": self._log.last_dispatcher_seconds},
        )
        try:
            self._task_states.recover()
            for slot in self._slots.values():
                self._gangs.start(slot)
            while not self._is_over():
                if self._stop.is_set():
                    self._stop_all()
                    raise KeyboardInterrupt
                self._turn()
        finally:
            # workers first: a stretch ends when its worker is gone
            self._pool.close()
            self._store.end_stretches(task=None, seconds=self._log.now, outcome="the dispatcher ended")
            self._log.note_presence(at_once=True)
            self._update_watcher()

    def _turn(self) -> None:
        for event in self._pool.wait(self._settings.poll_seconds):
            self._take_event(event)
        for slot in self._slots.values():
            if fault := slot.fault(self._settings.limits, now=self._log.now):
                slot.kill_reason = fault
                self._pool.kill(slot.slot.slot_id)
        if self._log.now - self._looked_at >= self._settings.look_seconds:
            self._looked_at = self._log.now
            self._log.note_presence()
            self._task_states.look_at_queue()
        self._plan()
        self._gangs.settle(self._replanner.gang_in)
        for slot in self._slots.values():
            self._follow_plan(slot)
        if self._log.now - self._updated_at >= _SECONDS_BETWEEN_UPDATES:
            self._update_watcher()

    def _is_over(self) -> bool:
        if all(slot.is_lost for slot in self._slots.values()) and not self._pool.can_grow:
            raise RunStateError(
                f"no worker slot is left; see the workers' logs in {self._directory / 'workers'}, fix the cause, "
                f"and continue with `cohort resume {self._directory}`"
            )
        # before the first look the queue on the disk is unknown, and events may put a task back
        if self._settings.keeps_open or self._looked_at < 0 or self._task_states.events:
            return False
        return not self._store.has_open_tasks() and not any(slot.tasks for slot in self._slots.values())

    def _update_watcher(self) -> None:
        self._updated_at = self._log.now
        self._watcher.update(
            view_queue(
                self._store,
                now=self._log.now,
                replanner=self._replanner,
                worker_slots=self._slots.values(),
                heartbeats=self._task_states.heartbeats,
            )
        )

    def _take_event(self, event: PoolEvent) -> None:
        match event:
            case WorkerMessage():
                self._take_report(self._slots[event.slot_id], read_message(event.message))
            case WorkerDied():
                self._replace_worker(self._slots[event.slot_id], event.reason)
            case SlotsLost():
                self._lose_slots(event.slot_ids, event.reason)
            # a new slot has a number that no lost one had, so old records stay unambiguous
            case SlotsGained():
                self._log.decide("worker", text=f"slots joined: {', '.join(slot.device for slot in event.slots)}")
                for slot in event.slots:
                    self._slots[slot.slot_id] = WorkerSlot(slot=slot)
                    self._gangs.start(self._slots[slot.slot_id])
                    gained = GpusGained(at_seconds=self._log.now, node=slot.node, gpu_ids=(slot.slot_id,))
                    self._task_states.events.append(gained)

    def _take_report(self, slot: WorkerSlot, report: object) -> None:
        now = slot.last_message_at = self._log.now
        # a report about another task than the slot's is late: the slot was taken from that task in the meantime
        match report:
            case Ready() if slot.state is WorkerSlotState.STARTING:
                slot.enter(WorkerSlotState.IDLE, now=now)
                self._was_ready = True
            case Heartbeat():
                slot.heartbeat = report
                if report.task is not None and report.task in slot.tasks:
                    self._task_states.take_heartbeat(report.task, report)
                    self._look_for_room(slot, report)
            case Note(task=task, text=text):
                self._watcher.note(f"{task}: {text}")
            case TaskDone(task=task) if task in slot.tasks:
                self._release(slot, task, outcome="done")
                self._task_states.done(task)
            case TaskStopped(task=task) if task in slot.tasks:
                was_asked = task in slot.stopping
                self._release(slot, task, outcome="stopped")
                self._task_states.stopped(task, was_asked=was_asked)
            case TaskError(task=task) if task in slot.tasks:
                self._release(slot, task, outcome="failed")
                self._task_states.failed(task, report.message, is_final=report.is_input_error)
            case CannotShare(task=task, reason=reason) if task in slot.tasks:
                self._release(slot, task, outcome="could not share")
                self._task_states.could_not_share(task, reason)

    def _look_for_room(self, slot: WorkerSlot, beat: Heartbeat) -> None:
        """Have the planner look for a task that trains in the room that the slot's tasks leave."""
        now, is_waited_for = self._log.now, any(task.work is not None for task in self._replanner.state.waiting)
        is_due = now - slot.room_at >= self._settings.room_seconds
        can_join = slot.is_shared and slot.state is WorkerSlotState.BUSY and is_waited_for
        if not can_join or not is_due or beat.free_share < LEAST_ROOM:
            return
        slot.room_at = now
        self._task_states.found_room(slot.tasks)

    def _replace_worker(self, slot: WorkerSlot, reason: str) -> None:
        reason = f"{slot.kill_reason}, {reason}" if slot.kill_reason else reason
        state, stopping = slot.state, set(slot.stopping)
        if state in (WorkerSlotState.CLEARING, WorkerSlotState.LOST):
            self._gangs.emptied(slot)
            return
        text = f"the worker on {self._devices(slot)} died: {reason}"
        for task in slot.tasks or [""]:
            self._log.decide("worker", task=task, text=text)
        for task in list(slot.tasks):
            self._release(slot, task, outcome="its worker died")
            if task in stopping:
                # it was giving the task up anyway: that is no fault of the task
                self._task_states.stopped(task, was_asked=True)
            else:
                self._task_states.failed(task, f"its worker died: {reason}")
        slot.deaths = slot.deaths + 1 if state is WorkerSlotState.STARTING else 0
        if slot.deaths >= self._settings.limits.deaths_in_a_row:
            self._lose_slots(
                [slot.slot.slot_id], f"{slot.deaths} workers in a row died before they could work: {reason}"
            )
        else:
            # the next turn starts another
            self._gangs.emptied(slot)

    def _lose_slots(self, slot_ids: Sequence[int], reason: str) -> None:
        tasks = []
        for slot in (self._slots[slot_id] for slot_id in slot_ids):
            # with one slot of a gang its task is lost
            holder = slot if slot.lent_to is None else self._slots[slot.lent_to]
            for task in list(holder.tasks):
                tasks.append(task)
                self._release(holder, task, outcome="its slot was lost")
            if holder is not slot and not holder.is_lost:
                holder.enter(WorkerSlotState.CLEARING, now=self._log.now)
                self._pool.kill(holder.slot.slot_id)
            slot.enter(WorkerSlotState.LOST, now=self._log.now)
            self._gangs.emptied(slot)
        self._task_states.lost_slots(tuple(slot_ids), tasks, reason=reason)

    def _release(self, slot: WorkerSlot, task: str, *, outcome: str) -> None:
        self._store.end_stretches(task=task, seconds=self._log.now, outcome=outcome)
        slot.tasks.remove(task)
        slot.stopping.discard(task)
        state = WorkerSlotState.STOPPING if slot.stopping else WorkerSlotState.BUSY
        if not slot.tasks:
            slot.enter(WorkerSlotState.IDLE, now=self._log.now)
        elif slot.state is not state:
            slot.enter(state, now=self._log.now)

    def _plan(self) -> None:
        """Take all that happened to the planner, if anything did."""
        # a plan starts its first tasks at once, so its times would be wrong by what the first worker takes to start
        if not self._was_ready and any(slot.state is WorkerSlotState.STARTING for slot in self._slots.values()):
            return
        events, self._task_states.events = self._task_states.events, []
        if not events:
            self._replanner.advance(self._log.now)
            return
        changes = self._replanner.take(events, saved_shares=self._task_states.done_shares())
        # ends move by seconds all the time: a plan that only follows them is recorded but not shown
        only_times = all(isinstance(event, TaskReestimated | RoomFound) for event in events)
        has_news = bool(changes.started or changes.evicted or changes.joined)
        self._log.planned(changes, is_shown=not only_times or has_news)
        self._task_states.give_up_stranded()
        for task in changes.evicted:
            slots = [slot.slot.slot_id for slot in self._slots.values() if task in slot.tasks]
            gang = [slot_id for leader in slots for slot_id in self._slots[leader].gang]
            by = next((names[0] for slot_id in gang if (names := self._replanner.wanted_in(slot_id))), "")
            if slots:
                self._task_states.evicted(task, by=by or "a more urgent task")
        for joined in changes.joined:
            self._log.joined(joined)

    def _follow_plan(self, slot: WorkerSlot) -> None:
        wanted = () if slot.is_lost else self._replanner.wanted_in(slot.slot.slot_id)
        has_devices = self._replanner.gang_in(slot.slot.slot_id) == slot.gang
        if slot.state in (WorkerSlotState.BUSY, WorkerSlotState.STOPPING):
            for task in slot.tasks:
                if task not in slot.stopping and not (task in wanted and has_devices):
                    self._ask_to_stop(slot, task)
        if slot.state is WorkerSlotState.IDLE:
            if has_devices and wanted and self._is_free(wanted[0]):
                self._begin(wanted[0], slot)
        elif slot.state is WorkerSlotState.BUSY and slot.is_shared:
            for task in wanted:
                if task not in slot.tasks and self._is_free(task):
                    self._begin(task, slot)

    def _ask_to_stop(self, slot: WorkerSlot, task: str) -> None:
        slot.stopping.add(task)
        slot.enter(WorkerSlotState.STOPPING, now=self._log.now)
        self._pool.send(slot.slot.slot_id, as_message(StopTask(task=task)))

    def _is_free(self, name: str) -> bool:
        if any(name in slot.tasks for slot in self._slots.values()):
            return False
        # a worker of a dispatcher that was killed may still be writing its last checkpoint
        root = self._directory / name
        holder = RunDirectory(root).lock().holder() if root.is_dir() else None
        if holder is not None and name not in self._waited_for:
            self._waited_for.add(name)
            self._log.decide("note", task=name, text=f"waits until {holder} has left its run directory")
        return holder is None

    def _begin(self, name: str, slot: WorkerSlot) -> None:
        task = self._store.task(name)
        assert task is not None, "the plan holds tasks of the queue"
        run_directory = self._directory / name
        # a run that has begun keeps its task, and checks rows and weights itself when it resumes
        is_new = RunDirectory.find_problem(run_directory) is None
        if is_new and (changes := find_changes(task, directory=self._directory)):
            self._task_states.held(name, changes)
            return
        if not slot.tasks:
            active = self._replanner.active(name)
            slot.is_shared = not slot.also and active is not None and active.request.work is not None
            slot.heartbeat = None
            slot.enter(WorkerSlotState.BUSY, now=self._log.now)
        slot.tasks.append(name)
        began = self._log.now
        for member in map(self._slots.__getitem__, slot.gang):
            self._store.begin_stretch(
                RunStretch(task=name, slot_id=member.slot.slot_id, device=member.slot.device, start_seconds=began)
            )
        self._task_states.begun(name, device=self._devices(slot))
        # one process for each device of a gang; a run that began on another number goes on with this one
        options = self._settings.options
        if slot.also:
            options = replace(options, num_ranks=len(slot.gang))
        order = RunTask(
            task=name,
            source=task.source,
            resolved=task.task,
            run_directory=str(run_directory),
            options=asdict(options),
            is_shared=slot.is_shared,
        )
        self._pool.send(slot.slot.slot_id, as_message(order))

    def _devices(self, slot: WorkerSlot) -> str:
        return ", ".join(self._slots[slot_id].slot.device for slot_id in slot.gang)

    def _stop_all(self) -> None:
        self._log.decide("dispatcher", text="asked to stop: every task saves its state")
        for slot in self._slots.values():
            for task in slot.tasks:
                if task not in slot.stopping:
                    self._ask_to_stop(slot, task)
        deadline = self._log.now + self._settings.limits.stop_seconds
        while any(slot.tasks for slot in self._slots.values()) and self._log.now < deadline:
            # deaths do not start another worker now, so _take_event would be wrong here
            for event in self._pool.wait(self._settings.poll_seconds):
                if isinstance(event, WorkerMessage):
                    self._take_report(self._slots[event.slot_id], read_message(event.message))
                elif isinstance(event, WorkerDied):
                    for task in list(self._slots[event.slot_id].tasks):
                        self._release(self._slots[event.slot_id], task, outcome="its worker died")
        for queued in self._store.tasks():
            if queued.state is TaskState.RUNNING:
                self._store.update(queued.name, state=TaskState.QUEUED, reason="the queue was stopped")


def _by_node(slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        nodes[slot.node] = (*nodes.get(slot.node, ()), slot.slot_id)
    return nodes
