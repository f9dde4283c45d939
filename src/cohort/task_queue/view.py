"""A queue at one moment, for those who watch it live and for ``cohort status``: one place makes both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cohort.task_queue.messages import Beat
from cohort.task_queue.progress import QueueProgress, SlotView, TaskView
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.store import QueueStore
from cohort.task_queue.worker_slots import WorkerSlot

__all__ = ["view_queue"]

Times = Mapping[str, tuple[float, float]]


def view_queue(
    store: QueueStore,
    *,
    now: float,
    replanner: Replanner | None = None,
    worker_slots: Iterable[WorkerSlot] = (),
    beats: Mapping[str, Beat] | None = None,
) -> QueueProgress:
    """Return where the queue stands.

    Args:
        store: Of the queue.
        now: Of the queue's clock.
        replanner: The live plan, in the head; elsewhere the last recorded plan is shown.
        worker_slots: The slots, in the head.
        beats: By task, the last word of its worker.
    """
    plan, num_plans = store.last_plan()
    last = _times_of(plan) if plan is not None else {}
    if replanner is not None:
        last = {**last, **_live_times(replanner, now=now)}
    stretches = store.stretches()
    worker_slots = tuple(worker_slots)
    devices = {worker_slot.task: worker_slot.slot.device for worker_slot in worker_slots if worker_slot.task}
    devices |= {stretch.task: stretch.device for stretch in stretches if stretch.end_seconds is None}
    tasks = tuple(
        _view_task(
            task,
            device=devices.get(task.name, ""),
            beat=(beats or {}).get(task.name),
            last=last.get(task.name),
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
                slot_id=worker_slot.slot.slot_id,
                device=worker_slot.slot.device,
                state=worker_slot.state.value,
                task=worker_slot.task or "",
            )
            for worker_slot in worker_slots
        ),
        end_seconds=max(max(ends), now) if ends else None,
        num_plans=num_plans,
    )


def _view_task(
    task: QueuedTask,
    *,
    device: str,
    beat: Beat | None,
    last: tuple[float, float] | None,
    stretches: Sequence[RunStretch],
) -> TaskView:
    is_open = not task.state.is_final
    has_steps = beat is not None and beat.planned_steps > 0
    return TaskView(
        name=task.name,
        priority=task.priority,
        state=task.state,
        reason=task.reason,
        device=device if is_open else "",
        phase=beat.phase if beat is not None and task.state is TaskState.RUNNING else "",
        num_trials=beat.num_trials if beat is not None else 0,
        num_ended=beat.num_ended if beat is not None else 0,
        num_early=beat.num_early if beat is not None else 0,
        share_done=beat.steps_done / beat.planned_steps if beat is not None and has_steps else None,
        best_value=beat.best_value if beat is not None else None,
        expected_seconds=task.expected_seconds,
        planned_start=task.planned_start,
        planned_end=task.planned_end,
        expected_start=last[0] if last and is_open else None,
        expected_end=last[1] if last and is_open else None,
        actual_start=stretches[0].start_seconds if stretches else None,
        actual_end=stretches[-1].end_seconds if stretches and not is_open else None,
        held_seconds=sum(stretch.end_seconds - stretch.start_seconds for stretch in stretches if stretch.end_seconds),
    )


def _times_of(plan: TaskDecision) -> Times:
    placements: Sequence[Mapping[str, Any]] = plan.numbers["placements"]
    return {entry["task"]: (entry["start_seconds"], entry["end_seconds"]) for entry in placements}


def _live_times(replanner: Replanner, *, now: float) -> Times:
    """Return the times of the tasks that run, which move without a new plan."""
    return {
        task.request.task_id: (task.started_seconds, max(task.ends_seconds, now)) for task in replanner.state.active
    }
