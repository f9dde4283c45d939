"""Turns several task files into one verified plan: estimates each task, places all, and compares list policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.planning.cluster_choice import ClusterChoice
from cohort.planning.estimate.estimate import TaskEstimate, estimate_task
from cohort.planning.simulation_records import RunSegment
from cohort.prepare.fitting_task import load_fitting_task
from cohort.runs.directory import choose_name
from cohort.scheduling.packing.records import PackJob
from cohort.scheduling.placement.records import Placement, PlacementPlan, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, list_plan
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan
from cohort.tasks.task_file import TaskFile

__all__ = ["NamedTask", "TaskPlan", "load_tasks", "plan_json", "plan_tasks", "where_and_when"]


@dataclass(frozen=True, kw_only=True)
class NamedTask:
    """A task file under the name it has in plans and run directories."""

    name: str
    path: Path
    file: TaskFile


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """When and where every task runs, in the worst case.

    Attributes:
        choice: The devices.
        tasks: In the order they were given.
        estimates: By task name.
        requests: The tasks as they were planned.
        plan: Verified.
        baselines: Seconds until the last end under each list policy.
    """

    choice: ClusterChoice
    tasks: tuple[NamedTask, ...]
    estimates: Mapping[str, TaskEstimate]
    requests: tuple[TaskRequest, ...]
    plan: PlacementPlan
    baselines: Mapping[str, float]

    def placement(self, name: str) -> Placement:
        return next(placement for placement in self.plan.placements if placement.task_id == name)


def load_tasks(paths: Sequence[Path], *, repeat: int = 1) -> tuple[NamedTask, ...]:
    """Return the tasks of ``paths``, each ``repeat`` times under numbered names.

    Raises:
        InputError: every problem of all files, a file that is named twice, or no file at all.
    """
    problems: list[Problem] = []
    if not paths:
        hint = "Name the task files: cohort plan TASK.yaml ..."
        problems.append(Problem(where="cohort plan", found="no task", allowed="one or more task files", hint=hint))
    if repeat < 1:
        problems.append(Problem(where="--repeat", found=str(repeat), allowed="1 or more", hint="Leave it out."))
    found: list[NamedTask] = []
    seen: set[Path] = set()
    # a wrong file does not end the loop: the user gets the problems of all files at once (docs/decisions/0010)
    for path in paths:
        if path.resolve() in seen:
            hint = "Name it once; --repeat N plans each task N times."
            problems.append(Problem(where=str(path), found="the same file twice", allowed="each task once", hint=hint))
            continue
        seen.add(path.resolve())
        name = choose_name(path.resolve(), taken={task.name for task in found})
        try:
            task = load_fitting_task(path)
        except InputError as error:
            problems += error.problems
            continue
        if name is None:
            hint = "Rename the file: tasks need different names, which name their run directories."
            problems.append(
                Problem(
                    where=str(path), found=f"another task named {path.stem}", allowed="names that differ", hint=hint
                )
            )
            continue
        found.append(NamedTask(name=name, path=path, file=task))
    if problems:
        raise InputError(problems)
    if repeat == 1:
        return tuple(found)
    return tuple(replace(task, name=f"{task.name}-{number}") for number in range(1, repeat + 1) for task in found)


def plan_tasks(tasks: Sequence[NamedTask], choice: ClusterChoice, *, most_gpus: int | None = None) -> TaskPlan:
    """Estimate and place ``tasks``; code that shares nothing with the solver checks the plan.

    Args:
        most_gpus: Most GPUs that one task may be given; None: what its file says, and one for ``auto``.

    Raises:
        InputError: every task that fits no device or has wrong inputs.
    """
    problems: list[Problem] = []
    if most_gpus is not None and most_gpus < 1:
        hint = "Leave it out, or write 1."
        problems.append(Problem(where="--max-gpus-per-task", found=str(most_gpus), allowed="1 or more", hint=hint))
    # --repeat plans one file many times, and an estimate reads its data and model
    by_path: dict[Path, TaskEstimate] = {}
    # a task never spans nodes
    largest = max(len(node) for node in choice.cluster.nodes.values())
    for task in {task.path: task for task in tasks}.values():
        try:
            by_path[task.path] = estimate_task(task.file, choice.hardware, most_gpus=most_gpus, gpus_of_node=largest)
        except InputError as error:
            problems += [_with_file(problem, task, len(tasks)) for problem in error.problems]
    if problems:
        raise InputError(problems)
    estimates = {task.name: by_path[task.path] for task in tasks}
    requests = tuple(estimates[task.name].request(task.name) for task in tasks)
    plan = plan_placement(requests, choice.cluster)
    # a plan that the solver got wrong must fail here and not in a queue
    check_plan(plan, requests, choice.cluster)
    # what other orders would take shows what the solver is worth here
    baselines = {
        policy.value: list_plan(requests, choice.cluster, policy=policy).makespan_seconds for policy in ListPolicy
    }
    return TaskPlan(
        choice=choice,
        tasks=tuple(tasks),
        estimates=estimates,
        requests=requests,
        plan=plan,
        baselines=baselines,
    )


def _with_file(problem: Problem, task: NamedTask, count: int) -> Problem:
    # with one file its name would stand in every line and tell nothing
    return problem if count == 1 else replace(problem, where=problem.where.in_file(str(task.path)))


def plan_json(planned: TaskPlan) -> dict[str, Any]:
    plan = planned.plan
    return {
        "hardware": planned.choice.hardware.name,
        "is_dry_run": planned.choice.is_dry_run,
        "nodes": {name: list(gpus) for name, gpus in planned.choice.cluster.nodes.items()},
        "makespan_seconds": plan.makespan_seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "gap": plan.gap,
        "solver": {"status": plan.status.value, "gap": _finite(plan.solver_gap), "policy": plan.policy},
        "baselines": dict(planned.baselines),
        "tasks": [_task_json(planned, task) for task in planned.tasks],
    }


def _finite(value: float) -> float | None:
    # NaN is no JSON
    return value if value == value else None


def _task_json(planned: TaskPlan, task: NamedTask) -> dict[str, Any]:
    estimate = planned.estimates[task.name]
    return {
        "task": task.name,
        "file": str(task.path),
        "priority": estimate.priority,
        "trials": estimate.num_trials,
        **where_and_when(planned.placement(task.name)),
        "options": [
            {
                "num_gpus": option.num_gpus,
                "strategy": option.strategy,
                "numerics": option.numerics,
                "seconds": option.seconds,
                **{
                    f"{part}_seconds": getattr(option.time, part)
                    for part in ("training", "evaluation", "comparison", "start", "rest")
                },
                "memory_bytes": option.memory_bytes,
                "cost": option.step_source.value,
            }
            for option in estimate.options
        ],
    }


def where_and_when(record: Placement | RunSegment | PackJob) -> dict[str, Any]:
    # the keys of --json are the records' fields, alike in plans, simulations and packs
    return {name: getattr(record, name) for name in ("gpu_ids", "start_seconds", "end_seconds")}
