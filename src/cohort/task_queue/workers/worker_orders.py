"""What workers are told to do: begin the tasks that the plan wants in their slots, and give up the others."""

from __future__ import annotations

from dataclasses import asdict, replace

from cohort.runs.directory import RunDirectory
from cohort.task_queue.dispatcher_parts import DispatcherParts
from cohort.task_queue.records import RunStretch
from cohort.task_queue.submission import find_changes
from cohort.task_queue.workers.messages import RunTask, StopTask, as_message
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState

__all__ = ["WorkerOrders"]


class WorkerOrders:
    """Brings slots closer to the plan, each as soon as its worker can."""

    def __init__(self, parts: DispatcherParts) -> None:
        self._parts = parts
        self._store, self._pool, self._slots, self._log = parts.store, parts.pool, parts.slots, parts.log
        self._replanner, self._task_states, self._settings, self._directory = (
            parts.replanner,
            parts.task_states,
            parts.settings,
            parts.directory,
        )
        # tasks whose run directory another process had when they were to begin; each is noted once
        self._waited_for: set[str] = set()

    def follow_plan(self, slot: WorkerSlot) -> None:
        """Stop the tasks of a slot that the plan no longer wants there, and begin those that it does."""
        wanted = () if slot.is_lost else self._replanner.wanted_in(slot.slot.slot_id)
        has_devices = self._replanner.gang_in(slot.slot.slot_id) == slot.gang
        if slot.state in (WorkerSlotState.BUSY, WorkerSlotState.STOPPING):
            for task in slot.tasks:
                if task not in slot.stopping and not (task in wanted and has_devices):
                    self.ask_to_stop(slot, task)
        if slot.state is WorkerSlotState.IDLE:
            if has_devices and wanted and self._is_free(wanted[0]):
                self._begin(wanted[0], slot)
        elif slot.state is WorkerSlotState.BUSY and slot.is_shared:
            for task in wanted:
                if task not in slot.tasks and self._is_free(task):
                    self._begin(task, slot)

    def ask_to_stop(self, slot: WorkerSlot, task: str) -> None:
        """Have a worker save a task's state and give it up; it says so later."""
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
        self._task_states.begun(name, device=self._parts.devices(slot))
        # one process for each device of a gang; a run that began on another number goes on with this one
        options = self._settings.options
        if slot.also:
            options = replace(options, num_ranks=len(slot.gang))
        order = RunTask(
            task=name,
            source=task.source,
            # there a process for each slot takes a part of the task, and none sees a GPU
            resolved={**task.task, "num_gpus": 0} if slot.slot.is_cpu else task.task,
            run_directory=str(run_directory),
            options=asdict(options),
            is_shared=slot.is_shared,
            priority=task.priority,
            tenant=task.tenant,
            weight=task.weight,
        )
        self._pool.send(slot.slot.slot_id, as_message(order))
