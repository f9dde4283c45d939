"""List policies: plans that the solver's plan is compared with and starts from, and that long queues use instead.

The policies are first come, shortest first, longest first and most work first. Each task starts as early as its place
in the list allows, on the first GPUs that are free together. No task overtakes and delays an earlier one, because GPUs
are reserved in list order. How many GPUs each task gets is chosen for the end of the whole list: the widest option ends
a task first, and often the queue last. Min GPU and Max GPU of PLoRA 6.1, which work within a task, are in the benchmark
``solo_baselines.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from cohort.scheduling.placement.records import (
    Cluster,
    Placement,
    PlacementPlan,
    RunningTask,
    SolverStatus,
    TaskOption,
    TaskRequest,
    check_placeable,
    level_makespans,
)
from cohort.scheduling.placement.verify import placement_lower_bound

__all__ = ["ListPolicy", "best_list_plan", "list_plan", "plan_in_order", "schedule_in_order"]


# with more tasks each order tries one width for all of them alone: a try costs as much as a whole list
_MOST_TASKS_ONE_BY_ONE = 24


class ListPolicy(Enum):
    """The order in which tasks are given GPUs; priorities go first in each."""

    FIRST_COME = "first come"
    SHORTEST_FIRST = "shortest first"
    LONGEST_FIRST = "longest first"
    MOST_WORK_FIRST = "most work first"
    WIDEST_FIRST = "widest first"


def _shortest(task: TaskRequest) -> float:
    return min(option.seconds for option in task.options)


def _least_work(task: TaskRequest) -> float:
    return min(option.seconds * option.num_gpus for option in task.options)


_ORDERS: Mapping[ListPolicy, Callable[[TaskRequest], tuple[float, ...]]] = {
    ListPolicy.FIRST_COME: lambda task: (task.arrival_seconds,),
    ListPolicy.SHORTEST_FIRST: lambda task: (_shortest(task), task.arrival_seconds),
    ListPolicy.LONGEST_FIRST: lambda task: (-_shortest(task), task.arrival_seconds),
    ListPolicy.MOST_WORK_FIRST: lambda task: (-_least_work(task), task.arrival_seconds),
    ListPolicy.WIDEST_FIRST: lambda task: (
        -min(option.num_gpus for option in task.options),
        -_shortest(task),
        task.arrival_seconds,
    ),
}


def list_plan(
    tasks: Sequence[TaskRequest], cluster: Cluster, *, policy: ListPolicy, running: Sequence[RunningTask] = ()
) -> PlacementPlan:
    """Return the plan of one list policy, with the numbers of GPUs that let its list end first.

    Raises:
        InputError: a task fits no GPUs there are.
    """
    # A policy orders tasks of one priority; between levels there is no choice.
    order = sorted(tasks, key=lambda task: (-task.priority, *_ORDERS[policy](task)))
    check_placeable(order, cluster)
    narrowed = _with_best_widths(order, cluster, running=running)
    plan = plan_in_order(narrowed, cluster, running=running, policy=policy.value)
    # the bound is that of the tasks with all their options
    return replace(plan, lower_bound_seconds=placement_lower_bound(order, cluster, running=running))


def _with_best_widths(
    order: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask]
) -> list[TaskRequest]:
    """Return the tasks in their order with the options that the best plan found for that order leaves them.

    Tried are all options, at most each number of GPUs for every task, and then, in a short list, each option of one
    task after the other until none ends the list sooner.
    """

    def end(tasks: Sequence[TaskRequest]) -> tuple[tuple[float, ...], float]:
        placements = schedule_in_order(tasks, cluster, running=running)
        # of plans that end alike, the one whose tasks end sooner
        return level_makespans(placements), sum(placement.end_seconds for placement in placements)

    widths = sorted({option.num_gpus for task in order for option in task.options}, reverse=True)
    best = list(order)
    if len(widths) < 2:
        return best
    shortest = end(best)
    for most in widths[1:]:
        narrow = [_at_most(task, most) for task in order]
        if (found := end(narrow)) < shortest:
            best, shortest = narrow, found
    improves = len(order) <= _MOST_TASKS_ONE_BY_ONE
    while improves:
        improves = False
        for place, task in enumerate(order):
            for option in task.options:
                if option.num_gpus > cluster.most_gpus_for(task):
                    continue
                tried = [*best[:place], replace(task, options=(option,)), *best[place + 1 :]]
                if (found := end(tried)) < shortest:
                    best, shortest, improves = tried, found, True
    return best


def _at_most(task: TaskRequest, most: int) -> TaskRequest:
    """Return the task without its options of more than ``most`` GPUs; its narrowest one always stays."""
    fewest = min(option.num_gpus for option in task.options)
    return replace(task, options=tuple(option for option in task.options if option.num_gpus <= max(most, fewest)))


def plan_in_order(
    order: Sequence[TaskRequest], cluster: Cluster, *, policy: str, running: Sequence[RunningTask] = ()
) -> PlacementPlan:
    """Return the plan that gives tasks their GPUs in ``order``; ``policy`` names where the order comes from.

    Raises:
        InputError: a task fits no GPUs there are.
    """
    check_placeable(order, cluster)
    placements = schedule_in_order(order, cluster, running=running)
    return PlacementPlan(
        placements=tuple(sorted(placements, key=lambda placement: (placement.start_seconds, placement.task_id))),
        status=SolverStatus.HEURISTIC,
        solver_gap=float("nan"),
        lower_bound_seconds=placement_lower_bound(order, cluster, running=running),
        time_unit_seconds=0.0,
        policy=policy,
    )


def best_list_plan(
    tasks: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask] = ()
) -> PlacementPlan:
    """Return the best plan of all list policies: the most urgent tasks' end first, then the next, the earliest policy
    among equals.

    Raises:
        InputError: a task fits no GPUs there are.
    """
    # The best of them is a start for the solver, and a plan that it is never allowed to fall behind.
    plans = [list_plan(tasks, cluster, policy=policy, running=running) for policy in ListPolicy]
    return min(plans, key=lambda plan: level_makespans(plan.placements))


def schedule_in_order(
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
