"""How an event changes the state of a cluster: what waits, what runs, and what fits no GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterEvent,
    ClusterState,
    GpusGained,
    GpusLost,
    RoomFound,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskReestimated,
    TaskWithdrawn,
)
from cohort.scheduling.placement.records import (
    TaskRequest,
    check_placeable,
    find_unplaceable,
)

__all__ = ["advance", "apply_arrivals", "apply_event", "stopped"]


def advance(state: ClusterState, *, now_seconds: float) -> ClusterState:
    """Return the state at a later time: nothing else changes.

    Raises:
        ValueError: time would go back.
    """
    if now_seconds < state.now_seconds:
        raise ValueError(f"the state is of {state.now_seconds} s, but the event of {now_seconds} s")
    return replace(state, now_seconds=now_seconds)


def apply_event(state: ClusterState, event: ClusterEvent) -> tuple[ClusterState, tuple[str, ...]]:
    """Return the state after ``event`` and the tasks that it stopped and that wait again.

    Raises:
        InputError: a task arrived that fits no GPUs there are.
        ValueError: the event is about a task that is not there, or lies in the past.
    """
    state = advance(state, now_seconds=event.at_seconds)
    match event:
        case TaskArrived():
            return apply_arrivals(state, [event]), ()
        case TaskEnded():
            _active(state, event.task_id)
            return _without(state, event.task_id), ()
        case TaskWithdrawn():
            known = {task.request.task_id for task in state.active}
            if event.task_id not in known | {task.task_id for task in (*state.waiting, *state.stranded)}:
                raise ValueError(f"there is no task {event.task_id}")
            return _without(state, event.task_id), ()
        case TaskInterrupted():
            task = _active(state, event.task_id)
            return stopped(state, task, saved_share=event.saved_share), (event.task_id,)
        case TaskReestimated():
            task = _active(state, event.task_id)
            # From its start, as all expectations are; a negative rest means that it should have ended.
            expected = state.now_seconds - task.started_seconds + max(event.remaining_seconds, 0.0)
            changed = replace(task, expected_seconds=expected)
            return replace(state, active=tuple(changed if other is task else other for other in state.active)), ()
        case RoomFound():
            return state, ()
        case GpusLost():
            saved = dict(event.saved_shares)
            hit = [task for task in state.active if set(task.gpu_ids) & set(event.gpu_ids)]
            for task in hit:
                state = stopped(state, task, saved_share=saved.get(task.request.task_id, 0.0))
            state = _sort_out(replace(state, cluster=state.cluster.without(event.gpu_ids)))
            return state, tuple(task.request.task_id for task in hit)
        case GpusGained():
            return _sort_out(replace(state, cluster=state.cluster.with_gpus(event.gpu_ids, node=event.node))), ()


def apply_arrivals(state: ClusterState, arrivals: Sequence[TaskArrived]) -> ClusterState:
    """Return the state after tasks have arrived: one look at the state for all of them, as when a long queue is opened.

    Raises:
        InputError: a task arrived that fits no GPUs there are.
        ValueError: a task is there already, or one came in the past.
    """
    known = {task.request.task_id for task in state.active}
    known |= {task.task_id for task in (*state.waiting, *state.stranded)}
    for event in arrivals:
        state = advance(state, now_seconds=event.at_seconds)
        if event.request.task_id in known:
            raise ValueError(f"task {event.request.task_id} already exists")
        known.add(event.request.task_id)
    # They are here now; the planner's times start at this moment.
    requests = [replace(event.request, arrival_seconds=0.0) for event in arrivals]
    check_placeable(requests, state.cluster)
    return replace(state, waiting=(*state.waiting, *requests))


def _active(state: ClusterState, task_id: str) -> ActiveTask:
    for task in state.active:
        if task.request.task_id == task_id:
            return task
    raise ValueError(f"task {task_id} does not run; these do: {[task.request.task_id for task in state.active]}")


def _without(state: ClusterState, task_id: str) -> ClusterState:
    return replace(
        state,
        active=tuple(task for task in state.active if task.request.task_id != task_id),
        waiting=tuple(task for task in state.waiting if task.task_id != task_id),
        stranded=tuple(task for task in state.stranded if task.task_id != task_id),
    )


def stopped(state: ClusterState, task: ActiveTask, *, saved_share: float) -> ClusterState:
    """Return the state where ``task`` waits with the share of its work that is not saved."""
    # Never nothing: a task that saved all its work still has to be started to end.
    left = task.request.remaining(max(1 - saved_share, 1e-6))
    return replace(_without(state, task.request.task_id), waiting=(*state.waiting, left))


def _sort_out(state: ClusterState) -> ClusterState:
    """Return the state with waiting tasks that no GPUs could hold set aside, and those that now fit waiting again."""
    fitting: list[TaskRequest] = []
    stranded: list[TaskRequest] = []
    for task in (*state.waiting, *state.stranded):
        (stranded if find_unplaceable([task], state.cluster) else fitting).append(task)
    return replace(state, waiting=tuple(fitting), stranded=tuple(stranded))
