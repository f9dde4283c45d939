"""The independent checker of placement plans: it shares nothing with what made them but their records.

It looks at a plan event by event, in exact seconds, and knows neither time units nor solvers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from cohort.core.errors import CohortError
from cohort.scheduling.placement.records import Cluster, Placement, PlacementPlan, RunningTask, TaskRequest

__all__ = ["PlanError", "check_plan", "find_plan_faults", "placement_lower_bound"]

# relative; sums of a few thousand float64 durations differ by far less
TOLERANCE = 1e-9


class PlanError(CohortError):
    """A plan is not one: a planner is wrong. Carries all faults."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def check_plan(
    plan: PlacementPlan, tasks: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask] = ()
) -> None:
    """Refuse a plan with faults.

    Raises:
        PlanError: with all of :func:`find_plan_faults`.
    """
    faults = find_plan_faults(plan, tasks, cluster, running=running)
    if faults:
        raise PlanError(faults)


def find_plan_faults(
    plan: PlacementPlan, tasks: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask] = ()
) -> tuple[str, ...]:
    """Return everything that is wrong with ``plan``, in words; empty when it is a plan for these tasks."""
    faults: list[str] = []
    expected = [task.task_id for task in tasks] + [task.task_id for task in running]
    found = [placement.task_id for placement in plan.placements]
    # Everything below looks placements up by task: with missing ones it would only repeat this fault.
    if sorted(expected) != sorted(found):
        faults.append(f"tasks are placed {sorted(found)}, but there are {sorted(expected)}")
        return tuple(faults)
    slack = TOLERANCE * max(plan.makespan_seconds, 1.0)
    placed = {placement.task_id: placement for placement in plan.placements}
    for task in tasks:
        faults += _task_faults(placed[task.task_id], task, cluster, slack=slack)
    for held in running:
        placement = placed[held.task_id]
        if set(placement.gpu_ids) != set(held.gpu_ids) or placement.start_seconds != 0:
            faults.append(f"{held.task_id} runs on {held.gpu_ids} now, but the plan moves it")
        if abs(placement.end_seconds - held.remaining_seconds) > slack:
            faults.append(f"{held.task_id} has {held.remaining_seconds} s left, but ends at {placement.end_seconds}")
    faults += _overlaps(plan.placements, slack=slack)
    # A plan below the bound means that the checker or the bound is wrong, which must be seen as well.
    bound = placement_lower_bound(tasks, cluster, running=running)
    if plan.makespan_seconds < bound - slack:
        faults.append(f"the plan ends at {plan.makespan_seconds}, before its lower bound {bound}")
    if plan.lower_bound_seconds > plan.makespan_seconds + slack:
        faults.append(f"the plan claims the bound {plan.lower_bound_seconds}, but ends at {plan.makespan_seconds}")
    return tuple(faults)


def _task_faults(placement: Placement, task: TaskRequest, cluster: Cluster, *, slack: float) -> list[str]:
    faults = []
    name, gpus = task.task_id, placement.gpu_ids
    seconds = [option.seconds for option in task.options if option.num_gpus == len(gpus)]
    if len(set(gpus)) != len(gpus) or not set(gpus) <= set(cluster.gpu_ids):
        faults.append(f"{name} is placed on {gpus}, which are not GPUs of the cluster")
    if not seconds:
        faults.append(f"{name} is placed on {len(gpus)} GPUs, which is none of its options")
    elif abs(placement.end_seconds - placement.start_seconds - seconds[0]) > slack:
        faults.append(
            f"{name} takes {seconds[0]} s, but is planned from {placement.start_seconds} to {placement.end_seconds}"
        )
    if placement.start_seconds < task.arrival_seconds - slack:
        faults.append(f"{name} arrives at {task.arrival_seconds}, but starts at {placement.start_seconds}")
    if not task.may_span_nodes and not any(set(gpus) <= set(node) for node in cluster.nodes.values()):
        faults.append(f"{name} does not ask to span nodes, but its GPUs {gpus} do")
    if placement.priority != task.priority:
        faults.append(f"{name} has priority {task.priority}, but is placed with {placement.priority}")
    return faults


def _overlaps(placements: Sequence[Placement], *, slack: float) -> list[str]:
    by_gpu: dict[int, list[Placement]] = {}
    for placement in placements:
        for gpu in placement.gpu_ids:
            by_gpu.setdefault(gpu, []).append(placement)
    faults = []
    for gpu, held in sorted(by_gpu.items()):
        # By start, so that only neighbours can overlap.
        held.sort(key=lambda placement: (placement.start_seconds, placement.end_seconds))
        for earlier, later in pairwise(held):
            if later.start_seconds < earlier.end_seconds - slack:
                faults.append(f"GPU {gpu} is held by {earlier.task_id} and {later.task_id} at {later.start_seconds}")
    return faults


def placement_lower_bound(
    tasks: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask] = ()
) -> float:
    """Return seconds before which no plan for these tasks can end.

    The largest of: work over GPUs (from each arrival on, the running tasks' included from now on), the latest end of a
    task alone, and the tasks that need more than half of the GPUs, one after the other. With several options a task
    counts with its least work, time, and time above half.

    The problem is ALTO 7.2's, P | size_j, r_j | C_max; with arrivals each bound is taken from each arrival on.
    """
    num_gpus = cluster.num_gpus
    if not num_gpus:
        return 0.0
    # Options that nothing here can hold would only make the bound lower than it need be.
    possible = [
        (task.arrival_seconds, [option for option in task.options if option.num_gpus <= cluster.most_gpus_for(task)])
        for task in tasks
    ]
    held = [(0.0, len(task.gpu_ids), task.remaining_seconds) for task in running]
    longest = [arrival + min(option.seconds for option in options) for arrival, options in possible if options]
    longest += [seconds for _, _, seconds in held]
    bounds = [max(longest, default=0.0)]
    # From each arrival on: late tasks cannot use the GPU time before they came.
    for since in sorted({0.0, *(arrival for arrival, _ in possible)}):
        area = math.fsum(
            min(option.num_gpus * option.seconds for option in options)
            for arrival, options in possible
            if arrival >= since and options
        )
        # Two tasks that each need more than half of the GPUs never run at the same time.
        exclusive = math.fsum(
            min(option.seconds for option in options)
            for arrival, options in possible
            if arrival >= since and options and all(2 * option.num_gpus > num_gpus for option in options)
        )
        if since == 0.0:
            area += math.fsum(gpus * seconds for _, gpus, seconds in held)
            exclusive += math.fsum(seconds for _, gpus, seconds in held if 2 * gpus > num_gpus)
        bounds += [since + area / num_gpus, since + exclusive]
    return max(bounds)
