"""Which task runs on which GPUs when: the shortest plan, by constraint programming.

One node: intervals with one cumulative constraint; the GPUs themselves are assigned afterwards, which is exact. Several
nodes: one optional interval per (task, option, node), exactly one present, one cumulative per node; a task that may
span nodes has a share on each. Time is in whole units of about a two-hundredth of the best list policy's makespan,
durations rounded up: in seconds many instances are not proven optimal within one second, in coarse units nearly all
are. Then the plan is re-timed in exact seconds, which only makes it shorter, and the best list policy's plan is taken
where that is shorter still.

Priorities are levels: the end of the most urgent tasks is minimised first, then, without delaying it, that of the next.

Source: ALTO 7.2, whose big-M form this equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from cohort.scheduling.placement.gpu_assignment import CoarsePlacement, assign_gpus
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import (
    Cluster,
    PlacementPlan,
    RunningTask,
    SolverStatus,
    TaskOption,
    TaskRequest,
    check_placeable,
    level_makespans,
)
from cohort.scheduling.placement.rolling_plan import fill_idle_nodes
from cohort.scheduling.placement.task_order import best_list_plan

__all__ = ["plan_placement"]

# Linear relaxations cost more than they say about few tasks: without them eleven tasks are proven in a seventieth of
# the work, twelve with several degrees in a quarter; at seventy tasks plans come out 2 % longer without.
_MOST_WITHOUT_LINEAR = 50


DEFAULTS = PlacementSettings()


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One option of one task in the model, on one node or spread (``node`` is None)."""

    option: TaskOption
    node: str | None
    present: cp_model.IntVar
    shares: tuple[cp_model.IntVar, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _TaskVariables:
    task: TaskRequest
    start: cp_model.IntVar
    end: cp_model.IntVar
    choices: tuple[_Choice, ...]


def plan_placement(
    tasks: Sequence[TaskRequest],
    cluster: Cluster,
    *,
    running: Sequence[RunningTask] = (),
    settings: PlacementSettings = DEFAULTS,
) -> PlacementPlan:
    """Return the shortest plan found for ``tasks``, with running tasks pinned where they are.

    Deterministic unless the wall-clock limit cuts in. Never worse than any list policy.

    Raises:
        InputError: a task fits no GPUs there are.
    """
    check_placeable(tasks, cluster)
    # A list plan that meets the lower bound is optimal, and no model needs to be built.
    listed = best_list_plan(tasks, cluster, running=running)
    makespan = listed.makespan_seconds
    has_one_level = len({placement.priority for placement in listed.placements}) == 1
    if not tasks or (has_one_level and makespan <= listed.lower_bound_seconds * (1 + 1e-12)):
        return replace(listed, status=SolverStatus.OPTIMAL, solver_gap=0.0)
    if len(tasks) > settings.most_solver_tasks:
        return fill_idle_nodes(listed, tasks, cluster, settings=settings, running=running)
    # A share of the plan's own length: the solver's work then does not grow with how long tasks take.
    unit = makespan / settings.num_units
    model = _PlacementModel(tasks, cluster, running=running, unit=unit)
    outcome = model.solve(settings)
    if outcome is None:
        return listed
    placements = assign_gpus(outcome.coarse, tasks, cluster, running=running)
    # Rounding up to whole units can cost more than the solver gains.
    is_better = level_makespans(placements) < level_makespans(listed.placements)
    return PlacementPlan(
        placements=placements if is_better else listed.placements,
        status=outcome.status,
        solver_gap=outcome.gap,
        lower_bound_seconds=listed.lower_bound_seconds,
        time_unit_seconds=unit,
        policy="solver" if is_better else listed.policy,
    )


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    coarse: tuple[CoarsePlacement, ...]
    status: SolverStatus
    gap: float


class _PlacementModel:
    """The constraint program of one plan."""

    def __init__(
        self, tasks: Sequence[TaskRequest], cluster: Cluster, *, running: Sequence[RunningTask], unit: float
    ) -> None:
        self.model = cp_model.CpModel()
        self.cluster = cluster
        self.unit = unit
        # everything in whole units from here on
        tasks = [self._in_units(task) for task in tasks]
        self.running = [replace(held, remaining_seconds=self._ceil(held.remaining_seconds)) for held in running]
        listed = best_list_plan(tasks, cluster, running=self.running)
        self.horizon = round(listed.makespan_seconds)
        if len({task.priority for task in tasks}) > 1:
            # The best plan for the urgent may push the rest beyond the list plan's end, but by no more than its length.
            self.horizon *= 2
        self.intervals: dict[str, list[cp_model.IntervalVar]] = {name: [] for name in cluster.nodes}
        self.demands: dict[str, list[cp_model.LinearExprT]] = {name: [] for name in cluster.nodes}
        self.variables = [self._add_task(task) for task in tasks]
        for held in self.running:
            self._pin(held)
        # One constraint a node, not one a GPU: GPUs of a node are alike, and naming them would multiply the search.
        for name, gpus in cluster.nodes.items():
            self.model.add_cumulative(self.intervals[name], self.demands[name], len(gpus))
        self._hint(listed)

    def _ceil(self, seconds: float) -> int:
        return math.ceil(seconds / self.unit)

    def _in_units(self, task: TaskRequest) -> TaskRequest:
        # Rounded up, never down: in exact seconds the plan may then only become shorter.
        options = tuple(replace(option, seconds=self._ceil(option.seconds)) for option in task.options)
        return replace(task, options=options, arrival_seconds=self._ceil(task.arrival_seconds))

    def _hint(self, listed: PlacementPlan) -> None:
        """Start the search from the best list plan, which is a solution in whole units."""
        hints = {placement.task_id: placement for placement in listed.placements}
        for variables in self.variables:
            hint = hints[variables.task.task_id]
            self.model.add_hint(variables.start, round(hint.start_seconds))
            self.model.add_hint(variables.end, round(hint.end_seconds))
            for choice in variables.choices:
                is_there = choice.node is None or set(hint.gpu_ids) <= set(self.cluster.nodes[choice.node])
                self.model.add_hint(choice.present, is_there and choice.option.num_gpus == hint.num_gpus)

    def _add_task(self, task: TaskRequest) -> _TaskVariables:
        start = self.model.new_int_var(round(task.arrival_seconds), self.horizon, f"start {task.task_id}")
        end = self.model.new_int_var(0, self.horizon, f"end {task.task_id}")
        choices: list[_Choice] = []
        for option in task.options:
            if task.may_span_nodes and len(self.cluster.nodes) > 1:
                if option.num_gpus <= self.cluster.num_gpus:
                    choices.append(self._spread(task, option, start, end))
                continue
            for name, gpus in self.cluster.nodes.items():
                if option.num_gpus <= len(gpus):
                    choices.append(self._on_node(task, option, name, start, end))
        self.model.add_exactly_one([choice.present for choice in choices])
        return _TaskVariables(task=task, start=start, end=end, choices=tuple(choices))

    def _on_node(
        self, task: TaskRequest, option: TaskOption, node: str, start: cp_model.IntVar, end: cp_model.IntVar
    ) -> _Choice:
        label = f"{task.task_id} on {option.num_gpus} of {node}"
        present = self.model.new_bool_var(label)
        size = round(option.seconds)
        interval = self.model.new_optional_interval_var(start, size, end, present, label)
        self.intervals[node].append(interval)
        self.demands[node].append(option.num_gpus)
        return _Choice(option=option, node=node, present=present)

    def _spread(self, task: TaskRequest, option: TaskOption, start: cp_model.IntVar, end: cp_model.IntVar) -> _Choice:
        label = f"{task.task_id} on {option.num_gpus} anywhere"
        present = self.model.new_bool_var(label)
        interval = self.model.new_optional_interval_var(start, round(option.seconds), end, present, label)
        shares = []
        # One interval on every node: a task that spans nodes holds its GPUs on all of them at the same time.
        for name, gpus in self.cluster.nodes.items():
            share = self.model.new_int_var(0, min(option.num_gpus, len(gpus)), f"{label}: {name}")
            self.intervals[name].append(interval)
            self.demands[name].append(share)
            shares.append(share)
        self.model.add(sum(shares) == option.num_gpus).only_enforce_if(present)
        return _Choice(option=option, node=None, present=present, shares=tuple(shares))

    # Running tasks are intervals that cannot move, so that waiting ones are planned around them.
    def _pin(self, held: RunningTask) -> None:
        size = round(held.remaining_seconds)
        for name, gpus in self.cluster.nodes.items():
            count = len(set(gpus) & set(held.gpu_ids))
            if count:
                self.intervals[name].append(self.model.new_fixed_size_interval_var(0, size, f"{held.task_id} {name}"))
                self.demands[name].append(count)

    def solve(self, settings: PlacementSettings) -> _Outcome | None:
        """Minimise level by level; None when nothing was found within the limits."""
        levels = sorted({variables.task.priority for variables in self.variables}, reverse=True)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = settings.num_workers
        solver.parameters.interleave_search = settings.num_workers > 1
        solver.parameters.random_seed = settings.seed
        if len(self.variables) <= _MOST_WITHOUT_LINEAR:
            solver.parameters.linearization_level = 0
        # Deterministic work: the same question has the same plan on a busy machine.
        solver.parameters.max_deterministic_time = settings.work_limit / len(levels)
        solver.parameters.max_time_in_seconds = settings.time_limit_seconds / len(levels)
        coarse: tuple[CoarsePlacement, ...] | None = None
        gaps: list[float] = []
        for level in levels:
            objective = self.model.new_int_var(0, self.horizon, f"end of priority {level}")
            for variables in self.variables:
                if variables.task.priority >= level:
                    self.model.add(variables.end <= objective)
            for held in self.running:
                if held.priority >= level:
                    self.model.add(objective >= round(held.remaining_seconds))
            self.model.minimize(objective)
            status = solver.solve(self.model)
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                # the levels solved before still give a plan for all tasks
                gaps.append(1.0)
                break
            coarse = self._read(solver)
            found = round(solver.objective_value)
            bound = math.ceil(solver.best_objective_bound - 1e-6)
            gaps.append(0.0 if status == cp_model.OPTIMAL else found / max(1, bound) - 1)
            # What the more urgent levels reached must not be given up for the next.
            self.model.add(objective <= found)
        if coarse is None:
            return None
        status = SolverStatus.OPTIMAL if max(gaps) == 0 else SolverStatus.FEASIBLE
        return _Outcome(coarse=coarse, status=status, gap=max(gaps))

    def _read(self, solver: cp_model.CpSolver) -> tuple[CoarsePlacement, ...]:
        found = []
        for variables in self.variables:
            choice = next(choice for choice in variables.choices if solver.boolean_value(choice.present))
            shares = (
                {choice.node: choice.option.num_gpus}
                if choice.node is not None
                else {
                    name: solver.value(share)
                    for name, share in zip(self.cluster.nodes, choice.shares, strict=True)
                    if solver.value(share)
                }
            )
            found.append(
                CoarsePlacement(
                    task_id=variables.task.task_id,
                    start=solver.value(variables.start),
                    end=solver.value(variables.end),
                    gpus_by_node=shares,
                )
            )
        return tuple(found)
