"""Which waiting task joins the executor of running ones, whose trials no longer fill its passes.

A task joins only where the plan would have it follow on the same GPU, and only if all of them are predicted to end
sooner together than one after the other. So sharing makes no plan longer: it moves work up into passes that are paid
for. Tasks of different priority never share, since each pass that holds more also takes longer.

Source: mLoRA and LoRAFusion train the tasks that are there on one base model. That a task joins when others no longer
fill the machine, and only where that is predicted to be faster, is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cohort.scheduling.cost.shared_time import SharedTime, SharedWork, shared_time
from cohort.scheduling.placement.cluster_events import ActiveTask, ClusterState, RoomFound
from cohort.scheduling.placement.records import PlacementPlan, TaskRequest

__all__ = ["LEAST_GAIN", "MOST_SHARING", "Joined", "choose_joining", "joined_state"]

# of the time that the tasks take one after the other: predictions are no better than this
LEAST_GAIN = 0.03
# tasks that are looked at, in the plan's order: alike ones would be predicted alike, by the hundred
MOST_CANDIDATES = 3
# of one executor; with more, each would get few slots and end late
MOST_SHARING = 3


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A task joins the executor of others.

    Attributes:
        task: It, on their GPU.
        hosts: The tasks that are there.
        seconds: Until the last of all of them ends, as predicted.
        seconds_apart: The same if it followed them.
        host_seconds: Until each of ``hosts`` ends, as predicted.
    """

    task: ActiveTask
    hosts: tuple[str, ...]
    seconds: float
    seconds_apart: float
    host_seconds: tuple[float, ...]


def choose_joining(state: ClusterState, event: RoomFound, *, plan: PlacementPlan | None) -> Joined | None:
    """Return which waiting task joins the executor that has room; None where none does.

    Args:
        state: Of the cluster, now.
        event: The executor and what is left of its tasks.
        plan: Of all tasks; None when nothing waits.
    """
    active = {task.request.task_id: task for task in state.active}
    hosts = [active[name] for name, _ in event.works if name in active]
    if plan is None or not hosts or len(hosts) < len(event.works) or len(hosts) >= MOST_SHARING:
        return None
    gpus, priority = hosts[0].gpu_ids, hosts[0].request.priority
    there = [work for _, work in event.works]
    # a more urgent task comes next, wherever it waits for a place
    if (
        len(gpus) > 1
        or any(host.gpu_ids != gpus for host in hosts)
        or any(task.priority > priority for task in state.waiting)
    ):
        return None
    alone = shared_time(there).seconds
    followers = _followers(state, plan, gpus=gpus, priority=priority)
    fitting = [entry for entry in followers if entry[1].key == there[0].key and entry[1].fits(there[0].capacity)]
    for task, work in fitting[:MOST_CANDIDATES]:
        apart = alone + work.start_seconds + shared_time([work]).seconds
        together: SharedTime = shared_time([*there, work])
        if together.seconds <= (1 - LEAST_GAIN) * apart:
            joining = ActiveTask(
                request=task, gpu_ids=gpus, started_seconds=state.now_seconds, expected_seconds=together.ends[-1]
            )
            return Joined(
                task=joining,
                hosts=tuple(name for name, _ in event.works),
                seconds=together.seconds,
                seconds_apart=apart,
                host_seconds=together.ends[:-1],
            )
    return None


def joined_state(state: ClusterState, joined: Joined) -> ClusterState:
    """Return the state in which a task has joined others, which end later than they would have without it."""
    ends = dict(zip(joined.hosts, joined.host_seconds, strict=True))
    active = []
    for task in state.active:
        seconds = ends.get(task.request.task_id)
        elapsed = state.now_seconds - task.started_seconds
        active.append(task if seconds is None else replace(task, expected_seconds=elapsed + seconds))
    name = joined.task.request.task_id
    waiting = tuple(task for task in state.waiting if task.task_id != name)
    return replace(state, active=(*active, joined.task), waiting=waiting)


def _followers(
    state: ClusterState, plan: PlacementPlan, *, gpus: tuple[int, ...], priority: int
) -> Sequence[tuple[TaskRequest, SharedWork]]:
    """Return the tasks that the plan has on the same GPU, in its order."""
    waiting = {task.task_id: task for task in state.waiting}
    found = []
    for placement in sorted(plan.placements, key=lambda placement: placement.start_seconds):
        task = waiting.get(placement.task_id)
        if task is not None and placement.gpu_ids == gpus and task.priority == priority and task.work is not None:
            found.append((task, task.work))
    return found
