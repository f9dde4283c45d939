"""Each task in turn takes the GPUs that let it end first: a list becomes a schedule, also one of ten thousand tasks.

Shapes:  N nodes · S GPUs of the largest node
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cohort.scheduling.placement.records import Cluster, Placement, RunningTask, TaskOption, TaskRequest

__all__ = ["schedule_in_order"]


def schedule_in_order(
    order: Sequence[TaskRequest],
    cluster: Cluster,
    *,
    running: Sequence[RunningTask] = (),
    free_from: Mapping[int, float] | None = None,
) -> list[Placement]:
    """Return placements where each task in turn takes the GPUs that let it end first, fewest GPUs among equals.

    A GPU is free for a task from the end of what was placed on it before; gaps that waiting for several GPUs leaves
    are not filled by later tasks.

    Args:
        free_from: By GPU, a time before which it takes nothing, in addition to what ``running`` holds.
    """
    free = _FreeTimes(cluster)
    placements = [held.placement() for held in running]
    for held in running:
        free.hold(held.gpu_ids, until=held.remaining_seconds)
    for gpu, seconds in (free_from or {}).items():
        free.hold((gpu,), until=seconds)
    for task in order:
        node, option = free.choose(task)
        placed = free.earliest(task, option, node)
        placements.append(placed)
        free.hold(placed.gpu_ids, until=placed.end_seconds)
    return placements


class _FreeTimes:
    """From when each GPU is free. A search over nodes is one look at a column: with Python's loops 10,000 tasks on
    128 nodes take a minute.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._gpus = [list(node) for node in cluster.nodes.values()]
        self._all = [gpu for node in self._gpus for gpu in node]
        self._node_of = {gpu: index for index, node in enumerate(self._gpus) for gpu in node}
        self._free = dict.fromkeys(self._all, 0.0)
        widest = max(len(node) for node in self._gpus)
        # row n: the times of node n's GPUs, ascending, so that column g - 1 says when g of them are free together
        self._times_NS = np.full((len(self._gpus), widest), np.inf)
        for index, node in enumerate(self._gpus):
            self._times_NS[index, : len(node)] = 0.0

    def hold(self, gpu_ids: Sequence[int], *, until: float) -> None:
        for gpu in gpu_ids:
            self._free[gpu] = max(self._free[gpu], until)
        for index in {self._node_of[gpu] for gpu in gpu_ids}:
            times = sorted(self._free[gpu] for gpu in self._gpus[index])
            self._times_NS[index, : len(times)] = times

    def choose(self, task: TaskRequest) -> tuple[int | None, TaskOption]:
        """Return the node, None where the GPUs may be on several, and the option of the earliest end."""
        chosen: tuple[float, int, int | None, TaskOption] | None = None
        for option in task.options:
            node: int | None = None
            if task.may_span_nodes:
                if option.num_gpus > len(self._all):
                    continue
                free = float(np.sort(self._times_NS, axis=None)[option.num_gpus - 1])
            elif option.num_gpus > self._times_NS.shape[1]:
                continue
            else:
                starts_N = np.maximum(self._times_NS[:, option.num_gpus - 1], task.arrival_seconds)
                node = int(starts_N.argmin())
                free = float(starts_N[node])
            end = max(task.arrival_seconds, free) + option.seconds
            # fewest GPUs among equal ends: the others are free for the next task
            if end < np.inf and (chosen is None or (end, option.num_gpus) < chosen[:2]):
                chosen = (end, option.num_gpus, node, option)
        assert chosen is not None, "every task was found placeable"
        return chosen[2], chosen[3]

    def earliest(self, task: TaskRequest, option: TaskOption, node: int | None) -> Placement:
        gpus = self._all if node is None else self._gpus[node]
        start = max(task.arrival_seconds, sorted(map(self._free.__getitem__, gpus))[option.num_gpus - 1])
        # of the GPUs that are free by then, those that became free last: the others can still serve a short task before
        ready = sorted((-self._free[gpu], gpu) for gpu in gpus if self._free[gpu] <= start)
        return Placement(
            task_id=task.task_id,
            gpu_ids=tuple(sorted(gpu for _, gpu in ready[: option.num_gpus])),
            start_seconds=start,
            end_seconds=start + option.seconds,
            priority=task.priority,
        )
