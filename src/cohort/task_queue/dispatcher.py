"""The dispatcher of a queue: turns what happens into events, asks the planner, and makes the workers follow the plan.

One loop, one thread. Each turn: take the workers' messages, kill workers that hang, look at the queue on the disk, plan
again if anything happened, and bring every slot closer to the plan. All that a new dispatcher needs is in ``queue.db``
and the run directories, so a dispatcher may die at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import RunStateError
from cohort.core.process.interrupts import StopRequest
from cohort.core.units import counted
from cohort.machine.cluster.worker_pool import Slot, WorkerDied, WorkerMessage, WorkerPool
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.cluster_events import RoomFound, TaskReestimated
from cohort.scheduling.placement.records import Cluster
from cohort.task_queue.dispatcher_parts import DispatcherParts
from cohort.task_queue.log import QueueLog
from cohort.task_queue.progress import QueueWatcher, view_queue
from cohort.task_queue.records import Expecting, QueuedTask, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.task_states import TaskStates
from cohort.task_queue.tenant_turns import FairTurns
from cohort.task_queue.workers.gangs import Gangs
from cohort.task_queue.workers.messages import read_message
from cohort.task_queue.workers.worker_events import WorkerEvents
from cohort.task_queue.workers.worker_orders import WorkerOrders
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState

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
        stop: StopRequest | None = None,
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
        self._stop = stop or StopRequest()
        self._log = QueueLog(store, clock=clock or SystemClock(), watcher=watcher, directory=directory)
        self._slots = {slot.slot_id: WorkerSlot(slot=slot) for slot in pool.slots()}
        self._replanner = Replanner(
            Cluster(nodes=_by_node(pool.slots())),
            policy=settings.policy,
            turns=FairTurns(store.facts().tenant_charges),
        )
        self._charges = self._replanner.turns.to_record()
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
        parts = DispatcherParts(
            store=store,
            pool=pool,
            slots=self._slots,
            log=self._log,
            replanner=self._replanner,
            gangs=self._gangs,
            task_states=self._task_states,
            settings=settings,
            directory=directory,
            watcher=watcher,
        )
        self._events, self._orders = WorkerEvents(parts), WorkerOrders(parts)

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
                    raise self._stop.error()
                self._turn()
        finally:
            # workers first: a stretch ends when its worker is gone
            self._pool.close()
            self._store.end_stretches(task=None, seconds=self._log.now, outcome="the dispatcher ended")
            self._log.note_presence(at_once=True)
            self._update_watcher()

    def _turn(self) -> None:
        for event in self._pool.wait(self._settings.poll_seconds):
            self._events.take(event)
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
            self._orders.follow_plan(slot)
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

    def _plan(self) -> None:
        """Take all that happened to the planner, if anything did."""
        # a plan starts its first tasks at once, so its times would be wrong by what the first worker takes to start
        if not self._events.was_ready and any(slot.state is WorkerSlotState.STARTING for slot in self._slots.values()):
            return
        events, self._task_states.events = self._task_states.events, []
        if not events:
            self._replanner.advance(self._log.now)
            return
        changes = self._replanner.take(events, saved_shares=self._task_states.done_shares())
        if (charges := self._replanner.turns.to_record()) != self._charges:
            self._charges = charges
            self._store.set_facts(tenant_charges=charges)
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

    def _stop_all(self) -> None:
        self._log.decide("dispatcher", text="asked to stop: every task saves its state")
        for slot in self._slots.values():
            for task in slot.tasks:
                if task not in slot.stopping:
                    self._orders.ask_to_stop(slot, task)
        deadline = self._log.now + self._settings.limits.stop_seconds
        while any(slot.tasks for slot in self._slots.values()) and self._log.now < deadline:
            # deaths do not start another worker now, so the events' own answer would be wrong here
            for event in self._pool.wait(self._settings.poll_seconds):
                if isinstance(event, WorkerMessage):
                    self._events.take_report(self._slots[event.slot_id], read_message(event.message))
                elif isinstance(event, WorkerDied):
                    for task in list(self._slots[event.slot_id].tasks):
                        self._events.release(self._slots[event.slot_id], task, outcome="its worker died")
        for queued in self._store.tasks():
            if queued.state is TaskState.RUNNING:
                self._store.update(queued.name, state=TaskState.QUEUED, reason="the queue was stopped")


def _by_node(slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        nodes[slot.node] = (*nodes.get(slot.node, ()), slot.slot_id)
    return nodes
