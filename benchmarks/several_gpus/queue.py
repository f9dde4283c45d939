"""Twelve tasks on two GPUs, some on one, some on both, some as the planner likes: what are gangs and plans worth?

Any machine does: seconds come from the cost model, tasks run in simulated time. Each number of GPUs has the seconds of
the task's trials divided over them, so a task of one trial is no faster on two.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.llama_shapes import decoder_config
from benchmarks.planning.plan_placement import EXIT_SHARES
from benchmarks.several_gpus.part import Part
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.planning.cluster_simulation import simulate
from cohort.planning.simulation_records import SimulatedTask, SimulationSettings
from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.analytic import ModelWork, analytic_step_cost
from cohort.scheduling.cost.hardware import KNOWN_GPUS
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import training_time
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster, PlacementPlan, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, list_plan
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan

__all__ = ["QUESTION", "measure"]

QUESTION = "What does a queue on two GPUs gain by giving tasks one GPU or both, planned, against other orders?"

GPUS = Cluster.of_one_node(2)
# trials of each task, and the numbers of GPUs it may have
TWELVE = (
    *((count, (1,)) for count in (1, 6, 24)),
    *((count, (2,)) for count in (12, 48)),
    *((count, (1, 2)) for count in (2, 4, 8, 16, 32, 60, 60)),
)
# one is longer than the other two together
THREE = ((4, (1, 2)), (60, (1, 2)), (8, (1, 2)))
ROW_TOKENS, START_SECONDS = 180, 30.0
LESS_WORK = PlacementSettings(work_limit=0.2)


def measure(options: argparse.Namespace) -> Part:
    # no weight is made; a tiny trial only lets the solver work less
    cost, solver = _step_cost(decoder_config("8b")), LESS_WORK if options.tiny else PlacementSettings()
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}
    seconds_of: dict[str, Any] = {}
    for name, kinds in (("twelve", TWELVE), ("three", THREE)):
        tasks = [_task(number, *kind, cost=cost) for number, kind in enumerate(kinds)]
        found, more = _orders(name, tasks, solver=solver)
        rows += found
        headline |= more
        seconds_of[name] = {task.task_id: {each.num_gpus: each.seconds for each in task.options} for task in tasks}
    notes = {"seconds": seconds_of, "exit_shares": list(EXIT_SHARES), "costs": "analytic, 8B on H100"}
    columns = ("tasks", "order", "planned_hours", "simulated_hours", "simulated_busy_share", "tasks_on_two", "replans")
    return Part(headline=headline, rows=rows, columns=columns, notes=notes)


def _orders(
    name: str, tasks: Sequence[TaskRequest], *, solver: PlacementSettings
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return the rows of one queue, and what its plan gains."""
    plan = plan_placement(tasks, GPUS, settings=solver)
    check_plan(plan, tasks, GPUS)
    planned = _row("planned", tasks, plan, policy=None, solver=solver)
    # what the choice of the number of GPUs is worth: always one where that may be, or always both
    fixed = {}
    for order, pick in (("planned, one GPU where it may", min), ("planned, both where it may", max)):
        narrowed = [replace(task, options=(pick(task.options, key=lambda each: each.num_gpus),)) for task in tasks]
        fixed[order] = _row(
            order, narrowed, plan_placement(narrowed, GPUS, settings=solver), policy=None, solver=solver
        )
    orders = {
        policy.value: _row(policy.value, tasks, list_plan(tasks, GPUS, policy=policy), policy=policy, solver=solver)
        for policy in ListPolicy
    }
    one, both = (row["planned_hours"] / planned["planned_hours"] for row in fixed.values())
    first_come = orders[ListPolicy.FIRST_COME.value]
    headline = {
        f"queue_{name}_over_bound": plan.gap,
        f"queue_{name}_one_gpu_each_over_planned": one,
        f"queue_{name}_both_gpus_each_over_planned": both,
        f"queue_{name}_first_come_over_planned": first_come["planned_hours"] / planned["planned_hours"],
        f"queue_{name}_first_come_over_planned_simulated": first_come["simulated_hours"] / planned["simulated_hours"],
    }
    return [{"tasks": name, **row} for row in (planned, *fixed.values(), *orders.values())], headline


def _row(
    name: str,
    tasks: Sequence[TaskRequest],
    plan: PlacementPlan,
    *,
    policy: ListPolicy | None,
    solver: PlacementSettings,
) -> dict[str, Any]:
    """Return what an order plans, and what comes of it when trials exit early and it plans again at every end."""
    report = simulate(
        # one number of trials for all: a task's length is the mean of as many draws
        [SimulatedTask(request=task, num_trials=16) for task in tasks],
        GPUS,
        settings=SimulationSettings(
            exit_shares=EXIT_SHARES, policy=policy, placement=replace(solver, work_limit=solver.work_limit / 20)
        ),
    )
    assert not report.unfinished, "every task fits"
    return {
        "order": name,
        "planned_hours": plan.makespan_seconds / 3600,
        "simulated_hours": report.makespan_seconds / 3600,
        "simulated_busy_share": report.utilisation,
        "tasks_on_two": sum(placement.num_gpus == 2 for placement in plan.placements),
        "replans": report.num_replans,
    }


def _task(number: int, num_trials: int, degrees: Sequence[int], *, cost: StepCost) -> TaskRequest:
    rng = random.Random(number)
    steps = rng.randrange(200, 1200, 50)
    trials = [_trial(trial_id, batch_size=rng.choice([1, 2, 4, 8]), steps=steps) for trial_id in range(num_trials)]
    options = []
    for degree in degrees:
        capacity = Capacity(rank_rows=64 * 16, num_slots=64, tokens_per_step=16_384, num_ranks=degree)
        requests = [request for request, _ in trials]
        works = {request.trial_id: work for request, work in trials}
        seconds = START_SECONDS + training_time(requests, works=works, capacity=capacity, cost=cost).seconds
        options.append(TaskOption(num_gpus=degree, seconds=seconds))
    return TaskRequest(task_id=f"task{number:02d}, {num_trials} trials", options=tuple(options))


def _trial(trial_id: int, *, batch_size: int, steps: int) -> tuple[Request, AdapterWork]:
    request = Request(trial_id=trial_id, r=16, batch_size=batch_size, mean_length=float(ROW_TOKENS))
    work = AdapterWork(r=16, num_tokens=float(batch_size * ROW_TOKENS), num_steps=steps, num_sequences=batch_size)
    return request, work


def _step_cost(config: DecoderConfig) -> StepCost:
    counts = count_model(config)
    return analytic_step_cost(
        ModelWork(
            flops_per_token=2 * counts.linear_flops_per_token + counts.head_flops_per_token,
            flops_per_square=1.5 * counts.attention_flops_per_pair,
            weight_bytes=2.0 * counts.parameters,
            rank_width=config.num_layers * (4 * config.hidden_size + 2 * config.intermediate_size),
            num_linears=7 * config.num_layers,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            bytes_per_value=2,
        ),
        KNOWN_GPUS["H100"],
    )
