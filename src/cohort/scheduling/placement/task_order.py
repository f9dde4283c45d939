"""List policies: plans that the solver's plan is compared with and starts from, and that long queues use instead.

The policies are first come, shortest first, longest first and most work first. Each task starts as early as its place
in the list allows, on the first GPUs that are free together. No task overtakes and delays an earlier one, because GPUs
are reserved in list order. How many GPUs each task gets is chosen for the end of the whole list: the widest option ends
a task first, and often the queue last. Min GPU and Max GPU of PLoRA 6.1, which work within a task, are in the benchmark
``solo_baselines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from cohort.scheduling.placement.list_schedule import schedule_in_order
from cohort.scheduling.placement.records import (
    Cluster,
    PlacementPlan,
    RunningTask,
    SolverStatus,
    TaskRequest,
    check_placeable,
    level_makespans,
)
from cohort.scheduling.placement.verify import placement_lower_bound

__all__ = ["ListPolicy", "best_list_plan", "list_plan", "plan_in_order", "with_least_work"]


# with more tasks each order tries one width for all of them alone: a try costs as much as a whole list
_MOST_TASKS_ONE_BY_ONE = 24
# with more, each takes the fewest GPU seconds: while this many wait, the width of one costs the others
_MOST_WITH_WIDTHS = 1000


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


# a long list ends with its last long tasks, unless these come first
_OF_LONG_LISTS = (ListPolicy.LONGEST_FIRST, ListPolicy.MOST_WORK_FIRST)


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
    if narrowed == order:
        return plan
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
    if len(widths) < 2 or all(len(task.options) == 1 for task in order):
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


def with_least_work(tasks: Sequence[TaskRequest], cluster: Cluster) -> list[TaskRequest]:
    """Return each task with only the number of GPUs, of those it may have here, that takes the fewest GPU seconds."""
    narrowed = []
    for task in tasks:
        most = cluster.most_gpus_for(task)
        # one that fits nowhere stays as it is, for the caller to refuse
        possible = [option for option in task.options if option.num_gpus <= most] or task.options
        least = min(possible, key=lambda option: (option.num_gpus * option.seconds, option.num_gpus))
        narrowed.append(task if len(task.options) == 1 else replace(task, options=(least,)))
    return narrowed


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
    if len(tasks) <= _MOST_WITH_WIDTHS:
        plans = [list_plan(tasks, cluster, policy=policy, running=running) for policy in ListPolicy]
    else:
        narrow = with_least_work(tasks, cluster)
        plans = [list_plan(narrow, cluster, policy=policy, running=running) for policy in _OF_LONG_LISTS]
    return min(plans, key=lambda plan: level_makespans(plan.placements))
