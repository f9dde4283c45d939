"""The plain form of list schedules, with Python's loops over nodes and GPUs: what the fast one must equal."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from cohort.scheduling.placement.records import Cluster, Placement, RunningTask, TaskOption, TaskRequest


def plain_schedule(
    order: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask] = ()
) -> list[Placement]:
    """Return placements where each task in turn takes the GPUs that let it end first, fewest GPUs among equals.

    A GPU is free for a task from the end of what was placed on it before; gaps that waiting for several GPUs leaves
    are not filled by later tasks.
    """
    free_from = dict.fromkeys(cluster.gpu_ids, 0.0)
    placements = [held.placement() for held in running]
    for held in running:
        free_from |= dict.fromkeys(held.gpu_ids, held.remaining_seconds)
    times: dict[tuple[int, ...], list[float]] = {}
    for task in order:
        chosen: tuple[float, int, TaskOption, Sequence[int]] | None = None
        for gpus in _pools(task, cluster):
            if (frees := times.get(gpus)) is None:
                frees = times[gpus] = sorted([free_from[gpu] for gpu in gpus])
            for option in task.options:
                if option.num_gpus <= len(gpus):
                    end = max(task.arrival_seconds, frees[option.num_gpus - 1]) + option.seconds
                    # Fewest GPUs among equal ends: the others are free for the next task.
                    if chosen is None or (end, option.num_gpus) < chosen[:2]:
                        chosen = (end, option.num_gpus, option, gpus)
        assert chosen is not None, "every task was found placeable"
        best = _earliest(task, chosen[2], chosen[3], free_from)
        placements.append(best)
        # other pools' times stand, unless they share GPUs with this one
        times = {gpus: frees for gpus, frees in times.items() if not set(best.gpu_ids) & set(gpus)}
        for gpu in best.gpu_ids:
            free_from[gpu] = best.end_seconds
    return placements


def _pools(task: TaskRequest, cluster: Cluster) -> Sequence[tuple[int, ...]]:
    """Return the sets of GPUs that may be combined for ``task``."""
    return [cluster.gpu_ids] if task.may_span_nodes else list(cluster.nodes.values())


def _earliest(task: TaskRequest, option: TaskOption, gpus: Sequence[int], free_from: Mapping[int, float]) -> Placement:
    # Not a sort of all: a cluster has many more GPUs than a task takes.
    first = heapq.nsmallest(option.num_gpus, gpus, key=lambda gpu: (free_from[gpu], gpu))
    free = max(task.arrival_seconds, *(free_from[gpu] for gpu in first))
    # Among GPUs that are free by then, those that became free last: the others can still serve a short task before.
    ready = sorted((gpu for gpu in gpus if free_from[gpu] <= free), key=lambda gpu: (-free_from[gpu], gpu))
    return Placement(
        task_id=task.task_id,
        gpu_ids=tuple(sorted(ready[: option.num_gpus])),
        start_seconds=free,
        end_seconds=free + option.seconds,
        priority=task.priority,
    )
