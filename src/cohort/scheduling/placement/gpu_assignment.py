"""From a solver's coarse plan to GPUs and exact seconds.

A task that starts takes GPUs of its node that are free: the cumulative constraint ensures that there are enough, so
nothing is lost by choosing them afterwards. Then each task starts as soon as its GPUs are free in exact seconds. Coarse
durations were rounded up, so no task ends later than planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.scheduling.placement.records import Cluster, Placement, RunningTask, TaskRequest

__all__ = ["CoarsePlacement", "assign_gpus"]


@dataclass(frozen=True, kw_only=True)
class CoarsePlacement:
    """When a task runs, in time units, and how many GPUs of each node it holds."""

    task_id: str
    start: int
    end: int
    gpus_by_node: Mapping[str, int]


def assign_gpus(
    coarse: Sequence[CoarsePlacement],
    tasks: Sequence[TaskRequest],
    cluster: Cluster,
    *,
    running: Sequence[RunningTask] = (),
) -> tuple[Placement, ...]:
    """Return exact placements for a coarse plan, running tasks first, by start.

    Args:
        coarse: One per task; together with ``running`` they never hold more GPUs of a node than it has.
    """
    # (coarse time until which a GPU is held, exact time from which it is free)
    free_from = dict.fromkeys(cluster.gpu_ids, 0.0)
    # Running tasks keep their GPUs, so they are placed before anything is chosen.
    placements = [held.placement() for held in running]
    for held in running:
        free_from |= dict.fromkeys(held.gpu_ids, held.remaining_seconds)
    by_id = {task.task_id: task for task in tasks}
    # exact ends never exceed coarse ones, so the GPUs that the coarse plan counts as free are among those that are
    # free earliest; a task that takes those can never start later than planned
    for placed in sorted(coarse, key=lambda placement: (placement.start, placement.end, placement.task_id)):
        task = by_id[placed.task_id]
        gpus: list[int] = []
        for node, count in placed.gpus_by_node.items():
            gpus += sorted(cluster.nodes[node], key=lambda gpu: (free_from[gpu], gpu))[:count]
        start = max(task.arrival_seconds, *(free_from[gpu] for gpu in gpus))
        end = start + task.seconds_on(len(gpus))
        for gpu in gpus:
            free_from[gpu] = end
        placements.append(
            Placement(
                task_id=task.task_id,
                gpu_ids=tuple(sorted(gpus)),
                start_seconds=start,
                end_seconds=end,
                priority=task.priority,
            )
        )
    return tuple(sorted(placements, key=lambda placement: (placement.start_seconds, placement.task_id)))
