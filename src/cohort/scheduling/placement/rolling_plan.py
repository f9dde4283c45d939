"""Plans of queues that are too long for the solver: list order for all of it, exact where GPUs would stand idle now.

A list reserves GPUs in its order, and a node may wait for its last task before a wide one can start. Only what happens
now is final: the rest is planned again when anything happens. So the solver looks at the nodes on which the list leaves
GPUs idle now, at the tasks that it starts there within the next hour, and finds their best order in which none of them
starts later than in the list. A wide task is therefore never overtaken for ever, and the order of tenants stands.

Source: conservative backfilling (Mu'alem and Feitelson 2001), made exact within a node and an hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from cohort.scheduling.placement.gpu_assignment import CoarsePlacement, assign_gpus
from cohort.scheduling.placement.list_schedule import schedule_in_order
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster, Placement, PlacementPlan, RunningTask, TaskRequest

__all__ = ["fill_idle_nodes"]

# of the deterministic work of a whole plan: a window of forty tasks is proven in less, or is hard
_WINDOW_WORK = 0.05
_FILLED = ", idle nodes filled"


def fill_idle_nodes(
    listed: PlacementPlan,
    tasks: Sequence[TaskRequest],
    cluster: Cluster,
    *,
    settings: PlacementSettings,
    running: Sequence[RunningTask] = (),
) -> PlacementPlan:
    """Return a list plan with what it leaves idle now filled, where that is possible; no node ends later for it.

    Args:
        listed: Of these tasks, from a list in the order that is to be kept.
    """
    by_id = {task.task_id: task for task in tasks}
    windows = _idle_windows(listed.placements, by_id, cluster, running=running, settings=settings)
    improved: dict[str, Placement] = {}
    for window in windows[: max(1, int(settings.work_limit / _WINDOW_WORK))]:
        improved |= {placement.task_id: placement for placement in window.filled(settings)}
    if not improved:
        return listed
    placements = [improved.get(placement.task_id, placement) for placement in listed.placements]
    return replace(
        listed,
        placements=tuple(sorted(placements, key=lambda placed: (placed.start_seconds, placed.task_id))),
        policy=f"{listed.policy.removesuffix(_FILLED)}{_FILLED}",
    )


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A node on which GPUs would stand idle now, with its own tasks in the order of their starts."""

    cluster: Cluster
    running: tuple[RunningTask, ...]
    soon: tuple[tuple[TaskRequest, Placement], ...]
    later: tuple[tuple[TaskRequest, Placement], ...]
    idle_gpus: int

    def filled(self, settings: PlacementSettings) -> Sequence[Placement]:
        """Return better placements of the node's tasks; none where there are no better ones."""
        tasks = [task for task, _ in self.soon]
        unit = max(placed.end_seconds for _, placed in self.soon) / settings.num_units
        coarse = _earlier_starts(tasks, self.cluster, self.running, unit=unit, settings=settings)
        if coarse is None:
            return ()
        held = {running.task_id for running in self.running}
        placed = [
            placement
            for placement in assign_gpus(coarse, tasks, self.cluster, running=self.running)
            if placement.task_id not in held
        ]
        before = {task.task_id: own for task, own in self.soon}
        waited = sum(own.num_gpus * (before[own.task_id].start_seconds - own.start_seconds) for own in placed)
        # rounding to whole units may move a task a little
        if waited <= 0 or any(own.start_seconds > before[own.task_id].start_seconds + 2 * unit for own in placed):
            return ()
        free_from: dict[int, float] = {}
        for own in placed:
            free_from |= {gpu: max(free_from.get(gpu, 0.0), own.end_seconds) for gpu in own.gpu_ids}
        rest = schedule_in_order(
            [task for task, _ in self.later], self.cluster, running=self.running, free_from=free_from
        )
        found = [*placed, *(own for own in rest if own.task_id not in held)]
        end = max(own.end_seconds for _, own in (*self.soon, *self.later))
        return found if max(own.end_seconds for own in found) <= end else ()


def _idle_windows(
    placements: Sequence[Placement],
    tasks: Mapping[str, TaskRequest],
    cluster: Cluster,
    *,
    running: Sequence[RunningTask],
    settings: PlacementSettings,
) -> list[_Window]:
    """Return the nodes that have idle GPUs now and tasks to come, most idle GPUs first."""
    node_of = {gpu: name for name, gpus in cluster.nodes.items() for gpu in gpus}
    own: dict[str, list[Placement]] = {name: [] for name in cluster.nodes}
    idle = {name: len(gpus) for name, gpus in cluster.nodes.items()}
    mixed = set()
    for placement in placements:
        names = {node_of[gpu] for gpu in placement.gpu_ids}
        if placement.start_seconds <= 0:
            for gpu in placement.gpu_ids:
                idle[node_of[gpu]] -= 1
        if placement.task_id in tasks:
            for name in names:
                own[name].append(placement)
            if len(names) > 1:
                mixed |= names
    windows = []
    for name, found in own.items():
        # urgent tasks and those on several nodes are left where the list has them
        if not idle[name] or name in mixed or len({placement.priority for placement in found}) != 1:
            continue
        pairs = [(_at_width(tasks[placed.task_id], placed.num_gpus), placed) for placed in found]
        num_soon = sum(placed.start_seconds < settings.horizon_seconds for placed in found)
        num_soon = min(num_soon, settings.most_solver_tasks)
        if all(placed.start_seconds <= 0 for _, placed in pairs[:num_soon]):
            continue
        here = set(cluster.nodes[name])
        held = tuple(
            replace(task, gpu_ids=tuple(gpu for gpu in task.gpu_ids if gpu in here))
            for task in running
            if here & set(task.gpu_ids)
        )
        windows.append(
            _Window(
                cluster=Cluster(nodes={name: cluster.nodes[name]}),
                running=held,
                soon=tuple(pairs[:num_soon]),
                later=tuple(pairs[num_soon:]),
                idle_gpus=idle[name],
            )
        )
    return sorted(windows, key=lambda window: -window.idle_gpus)


def _at_width(task: TaskRequest, num_gpus: int) -> TaskRequest:
    return replace(task, options=tuple(option for option in task.options if option.num_gpus == num_gpus))


def _earlier_starts(
    tasks: Sequence[TaskRequest],
    cluster: Cluster,
    running: Sequence[RunningTask],
    *,
    unit: float,
    settings: PlacementSettings,
) -> list[CoarsePlacement] | None:
    """Return starts, in units, that wait for the fewest GPU seconds, none later than in list order; None without."""
    (name,) = cluster.nodes
    coarse = [_in_units(task, unit) for task in tasks]
    held = [replace(task, remaining_seconds=math.ceil(task.remaining_seconds / unit)) for task in running]
    listed = {placed.task_id: placed for placed in schedule_in_order(coarse, cluster, running=held)}
    model = cp_model.CpModel()
    starts, intervals, demands = [], [], []
    for task in coarse:
        latest, option = round(listed[task.task_id].start_seconds), task.options[0]
        start = model.new_int_var(round(task.arrival_seconds), latest, task.task_id)
        model.add_hint(start, latest)
        starts.append(start)
        intervals.append(model.new_fixed_size_interval_var(start, round(option.seconds), task.task_id))
        demands.append(option.num_gpus)
    for own in held:
        intervals.append(model.new_fixed_size_interval_var(0, round(own.remaining_seconds), own.task_id))
        demands.append(len(own.gpu_ids))
    model.add_cumulative(intervals, demands, cluster.num_gpus)
    model.minimize(sum(demand * start for demand, start in zip(demands, starts, strict=False)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = settings.seed
    solver.parameters.max_deterministic_time = _WINDOW_WORK
    solver.parameters.max_time_in_seconds = settings.time_limit_seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [
        CoarsePlacement(
            task_id=task.task_id,
            start=solver.value(start),
            end=solver.value(start) + round(task.options[0].seconds),
            gpus_by_node={name: task.options[0].num_gpus},
        )
        for task, start in zip(coarse, starts, strict=True)
    ]


def _in_units(task: TaskRequest, unit: float) -> TaskRequest:
    # rounded up, never down: in exact seconds the plan may then only become shorter
    options = tuple(replace(option, seconds=math.ceil(option.seconds / unit)) for option in task.options)
    return replace(task, options=options, arrival_seconds=math.ceil(task.arrival_seconds / unit))
