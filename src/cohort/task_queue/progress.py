"""A queue at one moment, as it is shown live and by ``cohort status``, and the protocol of those who watch it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cohort.task_queue.records import QueuedTask, RunStretch, TaskState
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.messages import Heartbeat

if TYPE_CHECKING:
    # `cohort status` reads a queue with this module alone: the planner behind these takes seconds to load
    from cohort.task_queue.replanner import Replanner
    from cohort.task_queue.workers.worker_slots import WorkerSlot

__all__ = ["QueueProgress", "QueueWatcher", "SilentQueueWatcher", "SlotView", "TaskView", "view_queue"]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """One task at one moment. Times are seconds of the queue's clock.

    Attributes:
        name, priority, state, reason: As in the queue.
        device: Where it runs; empty when it does not.
        shares_with: The tasks that train in the same executor there.
        phase: What its run is doing, in words.
        num_trials, num_ended, num_early: Trials, those that ended, and those of them that exited early.
        share_done: The done share of the planned steps; None before it runs.
        best_value: The best value of its metric so far.
        expected_seconds: Predicted before it first ran, without early exit.
        held_seconds: How long it has held slots so far.
        planned_start, planned_end: As in the first plan that held it.
        expected_start, expected_end: As in the present plan.
        actual_start, actual_end: First start and last end.
    """

    name: str
    priority: int
    state: TaskState
    reason: str = ""
    device: str = ""
    shares_with: tuple[str, ...] = ()
    phase: str = ""
    num_trials: int = 0
    num_ended: int = 0
    num_early: int = 0
    share_done: float | None = None
    best_value: float | None = None
    expected_seconds: float | None = None
    held_seconds: float = 0.0
    planned_start: float | None = None
    planned_end: float | None = None
    expected_start: float | None = None
    expected_end: float | None = None
    actual_start: float | None = None
    actual_end: float | None = None


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot at one moment: its device, what its worker does, and with which tasks, separated by commas."""

    slot_id: int
    device: str
    state: str
    task: str


@dataclass(frozen=True, kw_only=True)
class QueueProgress:
    """A queue at one moment.

    Attributes:
        now_seconds: Now, by the queue's clock.
        tasks: All, in the order they were added.
        slots: All there are.
        end_seconds: When the plan expects the last task to end; None when nothing is left to do.
        num_plans: Made so far.
    """

    now_seconds: float
    tasks: tuple[TaskView, ...] = ()
    slots: tuple[SlotView, ...] = ()
    end_seconds: float | None = None
    num_plans: int = 0

    def count(self, state: TaskState) -> int:
        return sum(task.state is state for task in self.tasks)


class QueueWatcher(Protocol):
    """Shows progress; the dispatcher's only thread calls it, so it must return quickly."""

    def update(self, progress: QueueProgress) -> None:
        """Take a snapshot, several a second at most."""
        ...

    def note(self, text: str) -> None:
        """Take one line worth keeping."""
        ...


class SilentQueueWatcher:
    """Shows nothing."""

    def update(self, progress: QueueProgress) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def view_queue(
    store: QueueStore,
    *,
    now: float,
    replanner: Replanner | None = None,
    worker_slots: Iterable[WorkerSlot] = (),
    heartbeats: Mapping[str, Heartbeat] | None = None,
) -> QueueProgress:
    """Return where the queue stands.

    Args:
        replanner: The dispatcher's; other processes have none and show the last recorded plan.
        worker_slots: The dispatcher's slots.
        heartbeats: The last heartbeat of each task's worker.
    """
    plan, num_plans = store.last_plan()
    placements = plan.numbers["placements"] if plan is not None else ()
    expected = {entry["task"]: (entry["start_seconds"], entry["end_seconds"]) for entry in placements}
    # the ends of running tasks move without a new plan
    for task in replanner.state.active if replanner is not None else ():
        expected[task.request.task_id] = (task.started_seconds, max(task.ends_seconds, now))
    stretches, worker_slots = store.stretches(), tuple(worker_slots)
    by_id = {slot.slot.slot_id: slot for slot in worker_slots}
    held: dict[str, dict[int, str]] = {}
    for slot in worker_slots:
        for name in slot.tasks:
            held[name] = {slot_id: by_id[slot_id].slot.device for slot_id in slot.gang}
    there: dict[int, list[str]] = {}
    # a process that looks on has no slots: what the dispatcher recorded says where tasks run
    for stretch in stretches:
        if stretch.end_seconds is None:
            held.setdefault(stretch.task, {})[stretch.slot_id] = stretch.device
            there.setdefault(stretch.slot_id, []).append(stretch.task)
    devices = {task: ", ".join(names.values()) for task, names in held.items()}
    mates = {task: tuple(other for other in tasks if other != task) for tasks in there.values() for task in tasks}
    # a stretch without an end is a task that runs, also for a process that sees no slots
    tasks = tuple(
        _view_task(
            task,
            device=devices.get(task.name, ""),
            shares_with=mates.get(task.name, ()),
            beat=(heartbeats or {}).get(task.name) or Heartbeat(),
            expected=expected.get(task.name, (None, None)),
            stretches=[stretch for stretch in stretches if stretch.task == task.name],
        )
        for task in store.tasks()
    )
    ends = [task.expected_end for task in tasks if not task.state.is_final and task.expected_end is not None]
    return QueueProgress(
        now_seconds=now,
        tasks=tasks,
        slots=tuple(
            SlotView(
                slot_id=slot.slot.slot_id,
                device=slot.slot.device,
                state=worker.state.value,
                task=", ".join(worker.tasks),
            )
            for slot in worker_slots
            # the worker that has its device
            for worker in (slot if slot.lent_to is None else by_id[slot.lent_to],)
        ),
        end_seconds=max(max(ends), now) if ends else None,
        num_plans=num_plans,
    )


def _view_task(
    task: QueuedTask,
    *,
    device: str,
    shares_with: tuple[str, ...],
    beat: Heartbeat,
    expected: tuple[float | None, float | None],
    stretches: Sequence[RunStretch],
) -> TaskView:
    # a task that has ended keeps its times and values, and is in no slot any more
    is_open = not task.state.is_final
    return TaskView(
        name=task.name,
        priority=task.priority,
        state=task.state,
        reason=task.reason,
        device=device if is_open else "",
        shares_with=shares_with if is_open else (),
        phase=beat.phase if task.state is TaskState.RUNNING else "",
        num_trials=beat.num_trials,
        num_ended=beat.num_ended,
        num_early=beat.num_early,
        share_done=beat.steps_done / beat.planned_steps if beat.planned_steps > 0 else None,
        best_value=beat.best_value,
        expected_seconds=task.expected_seconds,
        planned_start=task.planned_start,
        planned_end=task.planned_end,
        expected_start=expected[0] if is_open else None,
        expected_end=expected[1] if is_open else None,
        actual_start=stretches[0].start_seconds if stretches else None,
        actual_end=stretches[-1].end_seconds if stretches and not is_open else None,
        # the slots of a gang are held at the same time
        held_seconds=sum(
            end - start for start, end in {(each.start_seconds, each.end_seconds) for each in stretches} if end
        ),
    )
