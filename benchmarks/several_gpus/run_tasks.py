"""Twelve tasks of degrees 1 and 2 on two GPUs: does a plan end when it says, and how much before other orders?

Each GPU has a process of its own that holds the model, so that no order pays for starts. A task is a pack of trials and
a number of steps; on both GPUs each trains half of its trials. First packs of 1 to 32 trials are timed, few steps and
more; from them every task's seconds with each degree follow, and from these the plans and when they end, all before the
first order runs. What is left out against a queue: starts, early exits and evaluations.

The plan is the solver's where it is installed; else orders and degrees are searched by exchanges, and the bound that no
plan can beat says how far from the best that may be.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import gsm8k_rows, hf_config
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.part import Part, keep
from benchmarks.steps.step_timing import trial_specs
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.ranks.calls import Call
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.scheduling.placement.records import Cluster, Placement, PlacementPlan, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, best_list_plan, list_plan, plan_in_order
from cohort.scheduling.placement.verify import check_plan, placement_lower_bound
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["GPUS", "QUESTION", "PackCosts", "best_plan", "measure", "search_plan", "tasks_of"]

QUESTION = "Does a plan of tasks on one or two GPUs end when it says, and how much before other orders?"
GPUS = Cluster.of_one_node(2)
PACKS = (1, 2, 4, 8, 16, 32)
MOST_TRIALS = 32
# trials of each task, and the numbers of GPUs it may have
TWELVE = (
    *((count, (1,)) for count in (2, 6, 24)),
    *((count, (2,)) for count in (12, 32)),
    *((count, (1, 2)) for count in (1, 2, 4, 8, 16, 24, 32)),
)
COLUMNS = ("order", "planned_seconds", "seconds", "measured_over_planned", "tasks_on_two", "busy_share")
# GPU seconds of all tasks together
ALL_SECONDS = 14.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pack of trials that train for a number of steps."""

    name: str
    trials: int
    steps: int
    degrees: tuple[int, ...]

    def request(self, costs: PackCosts) -> TaskRequest:
        """Return what a planner knows of it: its seconds with each number of GPUs."""
        options = [
            TaskOption(num_gpus=degree, seconds=costs.seconds(-(-self.trials // degree), self.steps))
            for degree in self.degrees
        ]
        return TaskRequest(task_id=self.name, options=tuple(options))


@dataclass(frozen=True, kw_only=True)
class PackCosts:
    """Seconds of packs on one GPU: ``fixed`` (trials come and go) and of each step, by the number of trials."""

    fixed: Mapping[int, float]
    step: Mapping[int, float]

    def seconds(self, trials: int, steps: int) -> float:
        """Return how long a pack takes, between measured packs on a line."""
        fixed, step = (float(np.interp(trials, list(found), list(found.values()))) for found in (self.fixed, self.step))
        return fixed + steps * step


def measure(options: argparse.Namespace) -> Part:
    shape = "tiny" if options.tiny else options.shape
    config = hf_config(shape, num_layers=options.num_layers or (2 if options.tiny else None))
    rows: list[dict[str, Any]] = []
    notes: dict[str, Any] = {"gpus": 2, "shape": shape, "layers": config["num_hidden_layers"], "batch_size": 1}
    with model_folder(options, config) as folder:
        ranks = _start(folder, vocab_size=config["vocab_size"])
        try:
            costs = _costs(ranks, PACKS[::5] if options.tiny else PACKS, steps=(2, 4) if options.tiny else (2, 10))
            print(costs, flush=True)
            tasks = tasks_of(costs, seconds=2.0 if options.tiny else ALL_SECONDS)
            requests = [task.request(costs) for task in tasks]
            plan = best_plan(requests)
            check_plan(plan, requests, GPUS)
            orders = {"planned": plan, "first come": list_plan(requests, GPUS, policy=ListPolicy.FIRST_COME)}
            for name, pick in (("planned, one GPU where it may", min), ("planned, both where it may", max)):
                narrowed = [replace(each, options=(pick(each.options, key=_num_gpus),)) for each in requests]
                orders[name] = best_plan(narrowed)
            for policy in (ListPolicy.LONGEST_FIRST, ListPolicy.SHORTEST_FIRST):
                orders[policy.value] = list_plan(requests, GPUS, policy=policy)
            notes |= {
                "costs_of_packs": asdict(costs),
                "planner": plan.policy,
                "lower_bound_seconds": plan.lower_bound_seconds,
                "planned_seconds_before_any_order_ran": {key: each.makespan_seconds for key, each in orders.items()},
                "tasks": [{"name": each.name, "trials": each.trials, "steps": each.steps} for each in tasks],
            }
            for name in list(orders)[:2] if options.tiny else orders:
                rows.append(_row(name, orders[name], tasks={each.name: each for each in tasks}, ranks=ranks))
                print(rows[-1], flush=True)
                keep(options, Part(headline=_headline(rows, notes), rows=rows, columns=COLUMNS, notes=notes))
        finally:
            for rank in ranks:
                rank.close()
    return Part(headline=_headline(rows, notes), rows=rows, columns=COLUMNS, notes=notes)


def search_plan(
    requests: Sequence[TaskRequest], cluster: Cluster = GPUS, *, restarts: int = 8, rounds: int = 400
) -> PlacementPlan:
    """Return the best plan that exchanges of two tasks and other degrees find, from the best list policy's and more."""
    rng = random.Random(0)
    best = best_list_plan(requests, cluster)
    for _ in range(restarts):
        order = [replace(task, options=(rng.choice(task.options),)) for task in rng.sample(requests, len(requests))]
        by_name = {task.task_id: task for task in requests}
        now = plan_in_order(order, cluster, policy="exchanges")
        for _ in range(rounds):
            other = [*order]
            one, two = rng.randrange(len(order)), rng.randrange(len(order))
            other[one], other[two] = other[two], other[one]
            if rng.random() < 0.5:
                other[one] = replace(other[one], options=(rng.choice(by_name[other[one].task_id].options),))
            found = plan_in_order(other, cluster, policy="exchanges")
            if found.makespan_seconds <= now.makespan_seconds:
                order, now = other, found
        best = min(best, now, key=lambda plan: plan.makespan_seconds)
    # a tried order has chosen the numbers of GPUs, and a bound of these alone
    return replace(best, lower_bound_seconds=placement_lower_bound(requests, cluster))


def best_plan(requests: Sequence[TaskRequest], cluster: Cluster = GPUS) -> PlacementPlan:
    """Return the solver's plan, or the searched one where there is no solver."""
    if importlib.util.find_spec("ortools") is None:
        return search_plan(requests, cluster)
    from cohort.scheduling.placement.task_planner import plan_placement

    return plan_placement(requests, cluster)


def _num_gpus(option: TaskOption) -> int:
    return option.num_gpus


def tasks_of(costs: PackCosts, kinds: Sequence[tuple[int, tuple[int, ...]]] = TWELVE, *, seconds: float) -> list[Task]:
    """Return tasks of random lengths that together take about ``seconds`` of one GPU.

    Args:
        kinds: Trials of each, and the numbers of GPUs it may have.
    """
    rng = random.Random(1)
    shares = [rng.uniform(0.5, 2.0) for _ in kinds]
    return [
        Task(
            name=f"task{number:02d}, {trials} trials",
            trials=trials,
            steps=_steps_in(seconds * share / sum(shares), trials, costs),
            degrees=degrees,
        )
        for number, ((trials, degrees), share) in enumerate(zip(kinds, shares, strict=True))
    ]


def _steps_in(seconds: float, trials: int, costs: PackCosts) -> int:
    fixed = costs.seconds(trials, 0)
    return max(2, round((seconds - fixed) / (costs.seconds(trials, 1) - fixed)))


def _start(folder: Path, *, vocab_size: int) -> list[RankProcess]:
    """Start a process on each GPU that holds the model, and wait for both."""
    on_gpu = torch.cuda.is_available()
    setup = TrainingSetup(
        rank=0,
        model_directory=str(folder),
        device="cuda" if on_gpu else "cpu",
        dtype="bfloat16" if on_gpu else "float32",
        target_linears=linear_shapes(read_config(folder)),
        settings=ExecutorSettings(
            num_slots=MOST_TRIALS,
            num_rank_rows=16 * MOST_TRIALS,
            token_budget=8192,
            evaluation_token_budget=8192,
        ),
        memory_limit_bytes=None,
        train_rows=gsm8k_rows(512, vocab_size=vocab_size),
        threads=1,
    )
    ranks = [RankProcess(replace(setup, rank=number, gpu=number)) for number in range(2)]
    for rank in ranks:
        _value(rank)
    return ranks


def _value(rank: RankProcess) -> Any:
    reply = rank.answer()
    if reply.error is not None:
        raise reply.error
    return reply.value


def _do(ranks: Sequence[RankProcess], calls: Sequence[Sequence[Call]]) -> None:
    """Carry out calls on ranks at the same time."""
    for rank, own in zip(ranks, calls, strict=True):
        for call in own:
            rank.ask(call)
    for rank, own in zip(ranks, calls, strict=True):
        for _ in own:
            _value(rank)


def _train(ranks: Sequence[RankProcess], *, trials: int, steps: int) -> None:
    """Train a pack, its trials divided over ``ranks``."""
    specs = trial_specs([16] * trials, batch_size=1)
    shares = [specs[place :: len(ranks)] for place in range(len(ranks))]
    used = [(rank, share) for rank, share in zip(ranks, shares, strict=True) if share]
    own = [rank for rank, _ in used]
    _do(own, [[Call.of(TrainingExecutor.load, spec) for spec in share] for _, share in used])
    _do(own, [[Call.of(TrainingExecutor.run, {spec.trial_id: steps for spec in share})] for _, share in used])
    _do(own, [[Call.of(TrainingExecutor.drop, spec.trial_id) for spec in share] for _, share in used])


def _costs(ranks: Sequence[RankProcess], packs: Sequence[int], *, steps: tuple[int, int]) -> PackCosts:
    """Return the costs of packs, from few steps and more on the slower GPU; both are busy, as under a plan."""
    fixed, step = {}, {}
    few, many = steps

    def of_rank(rank: RankProcess, pack: int) -> tuple[float, float]:
        _train([rank], trials=pack, steps=2)
        seconds = []
        for count in steps:
            began = time.perf_counter()
            _train([rank], trials=pack, steps=count)
            seconds.append(time.perf_counter() - began)
        each = max((seconds[1] - seconds[0]) / (many - few), 1e-6)
        return each, max(0.0, seconds[0] - few * each)

    with ThreadPoolExecutor(len(ranks)) as threads:
        for pack in packs:
            step[pack], fixed[pack] = max(threads.map(of_rank, ranks, [pack] * len(ranks)))
    return PackCosts(fixed=fixed, step=step)


def _row(name: str, plan: PlacementPlan, *, tasks: Mapping[str, Task], ranks: Sequence[RankProcess]) -> dict[str, Any]:
    """Work off a plan: each task begins once all tasks before it on its GPUs have ended."""
    left = sorted(plan.placements, key=lambda each: (each.start_seconds, each.task_id))
    running: set[int] = set()
    spans: dict[str, tuple[float, float]] = {}
    errors: list[BaseException] = []
    changed = threading.Condition()
    began = time.perf_counter()

    def work(placement: Placement) -> None:
        task = tasks[placement.task_id]
        start = time.perf_counter() - began
        try:
            _train([ranks[gpu] for gpu in placement.gpu_ids], trials=task.trials, steps=task.steps)
        except BaseException as error:
            errors.append(error)
        with changed:
            spans[task.name] = (start, time.perf_counter() - began)
            running.difference_update(placement.gpu_ids)
            changed.notify()

    threads = []
    with changed:
        while left or running:
            waited_for: set[int] = set()
            for placement in [*left]:
                if not running & {*placement.gpu_ids} and not waited_for & {*placement.gpu_ids}:
                    left.remove(placement)
                    running.update(placement.gpu_ids)
                    threads.append(threading.Thread(target=work, args=(placement,)))
                    threads[-1].start()
                else:
                    waited_for.update(placement.gpu_ids)
            changed.wait()
            if errors:
                raise errors[0]
    seconds = max(end for _, end in spans.values())
    gpus = {placement.task_id: placement.num_gpus for placement in plan.placements}
    busy = sum((end - start) * gpus[name] for name, (start, end) in spans.items())
    return {
        "order": name,
        "planned_seconds": plan.makespan_seconds,
        "seconds": seconds,
        "measured_over_planned": seconds / plan.makespan_seconds,
        "tasks_on_two": sum(count == 2 for count in gpus.values()),
        "busy_share": busy / 2 / seconds,
        "spans": spans,
    }


def _headline(rows: Sequence[Mapping[str, Any]], notes: Mapping[str, Any]) -> dict[str, float]:
    planned, *others = rows
    headline = {
        "run_tasks_2gpu_measured_over_planned": planned["measured_over_planned"],
        "run_tasks_2gpu_planned_over_bound": planned["planned_seconds"] / notes["lower_bound_seconds"],
    }
    for row in others:
        name = row["order"].replace("planned, ", "").replace(" where it may", "").replace(" ", "_")
        headline[f"run_tasks_2gpu_{name}_over_planned"] = row["seconds"] / planned["seconds"]
    return headline
