"""What workers report and what happens to them: taken in slot by slot, and passed on to the tasks' states."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.machine.cluster.worker_pool import PoolEvent, SlotsGained, SlotsLost, WorkerDied, WorkerMessage
from cohort.scheduling.cost.shared_time import LEAST_ROOM
from cohort.scheduling.placement.cluster_events import GpusGained
from cohort.task_queue.dispatcher_parts import DispatcherParts
from cohort.task_queue.workers.messages import (
    CannotShare,
    Heartbeat,
    Note,
    Ready,
    TaskDone,
    TaskError,
    TaskStopped,
    read_message,
)
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState

__all__ = ["WorkerEvents"]


class WorkerEvents:
    """Keeps the slots of a queue as their workers are.

    Attributes:
        was_ready: Whether a worker was ever ready to begin a task.
    """

    def __init__(self, parts: DispatcherParts) -> None:
        self._parts = parts
        self._store, self._pool, self._slots, self._gangs = parts.store, parts.pool, parts.slots, parts.gangs
        self._log, self._replanner, self._task_states, self._settings, self._watcher = (
            parts.log,
            parts.replanner,
            parts.task_states,
            parts.settings,
            parts.watcher,
        )
        self.was_ready = False

    def take(self, event: PoolEvent) -> None:
        """Take in what happened to a worker or to slots; workers that died are replaced."""
        match event:
            case WorkerMessage():
                self.take_report(self._slots[event.slot_id], read_message(event.message))
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

    def take_report(self, slot: WorkerSlot, report: object) -> None:
        """Take in what a slot's worker says about its tasks; what is late is ignored."""
        now = slot.last_message_at = self._log.now
        # a report about another task than the slot's is late: the slot was taken from that task in the meantime
        match report:
            case Ready() if slot.state is WorkerSlotState.STARTING:
                slot.enter(WorkerSlotState.IDLE, now=now)
                self.was_ready = True
            case Heartbeat():
                slot.heartbeat = report
                if report.task is not None and report.task in slot.tasks:
                    self._task_states.take_heartbeat(report.task, report)
                    self._look_for_room(slot, report)
            case Note(task=task, text=text):
                self._watcher.note(f"{task}: {text}")
            case TaskDone(task=task) if task in slot.tasks:
                self.release(slot, task, outcome="done")
                self._task_states.done(task)
            case TaskStopped(task=task) if task in slot.tasks:
                was_asked = task in slot.stopping
                self.release(slot, task, outcome="stopped")
                self._task_states.stopped(task, was_asked=was_asked)
            case TaskError(task=task) if task in slot.tasks:
                self.release(slot, task, outcome="failed")
                self._task_states.failed(task, report.message, is_final=report.is_input_error)
            case CannotShare(task=task, reason=reason) if task in slot.tasks:
                self.release(slot, task, outcome="could not share")
                self._task_states.could_not_share(task, reason)

    def release(self, slot: WorkerSlot, task: str, *, outcome: str) -> None:
        """End a task's stretch in a slot, which is idle after its last one."""
        self._store.end_stretches(task=task, seconds=self._log.now, outcome=outcome)
        slot.tasks.remove(task)
        slot.stopping.discard(task)
        state = WorkerSlotState.STOPPING if slot.stopping else WorkerSlotState.BUSY
        if not slot.tasks:
            slot.enter(WorkerSlotState.IDLE, now=self._log.now)
        elif slot.state is not state:
            slot.enter(state, now=self._log.now)

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
        text = f"the worker on {self._parts.devices(slot)} died: {reason}"
        for task in slot.tasks or [""]:
            self._log.decide("worker", task=task, text=text)
        for task in list(slot.tasks):
            self.release(slot, task, outcome="its worker died")
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
                self.release(holder, task, outcome="its slot was lost")
            if holder is not slot and not holder.is_lost:
                holder.enter(WorkerSlotState.CLEARING, now=self._log.now)
                self._pool.kill(holder.slot.slot_id)
            slot.enter(WorkerSlotState.LOST, now=self._log.now)
            self._gangs.emptied(slot)
        self._task_states.lost_slots(tuple(slot_ids), tasks, reason=reason)
