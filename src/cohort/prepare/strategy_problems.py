"""Whether a task works with the strategy that it names, also on GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from cohort.core.errors import Problem
from cohort.core.numerics import Numerics
from cohort.machine.machine import Machine
from cohort.memory.demand import Demand
from cohort.memory.rank_groups import GROUP_STRATEGIES, group_problems
from cohort.memory.weight_placement import placement_problems
from cohort.prepare.base_model.numerics import asked_numerics
from cohort.scheduling.solver import has_solver
from cohort.tasks.task_file import TaskFile
from cohort.tuning.early_exit.settings import compares_to_the_end

__all__ = ["strategy_problems"]


def strategy_problems(
    task: TaskFile, machine: Machine | None, *, num_ranks: int, demand_on: Callable[[Machine], Demand]
) -> list[Problem]:
    """Return everything of a task that does not work with its strategy on ``num_ranks`` ranks.

    Args:
        machine: What the ranks train on; None for GPUs as the task asks for them, which are not here.
        demand_on: Returns what the task wants of a machine.
    """
    problems = [*placement_problems(task), *_packing_problems(task), *_solver_problems(task)]
    if task.strategy not in GROUP_STRATEGIES or num_ranks <= 1:
        return problems
    if machine is None:
        machine = Machine(
            device=torch.device("cuda"),
            device_name="",
            dtype="bfloat16",
            threads=torch.get_num_threads(),
            memory_bytes=0,
            num_gpus=num_ranks,
            quantization=task.quantization,
            numerics=asked_numerics(task) or Numerics.FAST,
        )
    demand = replace(demand_on(machine), num_ranks=num_ranks)
    return [*problems, *group_problems(demand, task.strategy)]


def _packing_problems(task: TaskFile) -> list[Problem]:
    settings = task.early_exit_settings()
    if task.packing != "planned" or not compares_to_the_end(settings):
        return []
    return [
        Problem(
            where=task.where("packing"),
            found=f"planned, with early_exit.rule: {settings.rule}, which compares trials to their end",
            allowed="auto | refill, or a rule whose last comparison is before the end, or early_exit: none",
            hint="Remove packing: slots are refilled then.",
        )
    ]


def _solver_problems(task: TaskFile) -> list[Problem]:
    if task.microbatches != "solver":
        return []
    where, problems = task.where("microbatches"), []
    if task.strategy != "pipeline":
        which = "which may choose another" if task.strategy == "auto" else "which has no pipeline"
        problems.append(
            Problem(
                where=where,
                found=f"solver with strategy: {task.strategy}, {which}",
                allowed="solver with strategy: pipeline",
                hint="Remove microbatches, or write strategy: pipeline.",
            )
        )
    if not has_solver():
        problems.append(
            Problem(
                where=where,
                found="solver, but ortools, which solves the integer programs, is not installed",
                allowed="auto | greedy",
                hint="Run pip install ortools, or remove the key.",
            )
        )
    return problems
