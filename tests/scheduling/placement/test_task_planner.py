"""Placement: never worse than a list policy, never below the bound, always a plan; and what priorities promise."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import (
    Cluster,
    RunningTask,
    SolverStatus,
    TaskOption,
    TaskRequest,
    level_makespans,
)
from cohort.scheduling.placement.task_order import ListPolicy, best_list_plan, list_plan
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan, placement_lower_bound

from .placement_instances import random_instance, task

# small limits: a test needs the plan's properties, not its proof
QUICK = PlacementSettings(work_limit=0.3)


def eleven_tasks(repository: Path) -> tuple[list[TaskRequest], Cluster]:
    content = json.loads((repository / "benchmarks" / "planning" / "eleven_tasks.json").read_text())
    tasks = [task(entry["task_id"], entry["num_gpus"], entry["seconds"]) for entry in content["tasks"]]
    return tasks, Cluster.of_one_node(content["num_gpus"])


def check_instance(seed: int) -> None:
    tasks, cluster, running = random_instance(seed)
    plan = plan_placement(tasks, cluster, running=running, settings=QUICK)
    check_plan(plan, tasks, cluster, running=running)
    bound = placement_lower_bound(tasks, cluster, running=running)
    assert plan.makespan_seconds >= bound * (1 - 1e-9)
    assert plan.lower_bound_seconds == bound
    for policy in ListPolicy:
        listed = list_plan(tasks, cluster, policy=policy, running=running)
        check_plan(listed, tasks, cluster, running=running)
        assert plan.makespan_seconds <= listed.makespan_seconds * (1 + 1e-12), policy


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_is_worse_than_a_list_policy_or_below_the_bound(seed: int) -> None:
    check_instance(seed)


@pytest.mark.slow
def test_a_thousand_instances() -> None:
    for seed in range(1000):
        check_instance(seed)


def test_the_eleven_tasks_are_proven_optimal(repository: Path) -> None:
    tasks, cluster = eleven_tasks(repository)
    plan = plan_placement(tasks, cluster)
    check_plan(plan, tasks, cluster)
    assert plan.status is SolverStatus.OPTIMAL
    assert plan.solver_gap == 0
    assert plan.policy == "solver"
    assert plan.makespan_seconds < best_list_plan(tasks, cluster).makespan_seconds


def test_the_same_question_has_the_same_answer(repository: Path) -> None:
    tasks, cluster = eleven_tasks(repository)
    assert plan_placement(tasks, cluster) == plan_placement(tasks, cluster)


def best_by_brute_force(tasks: list[TaskRequest], num_gpus: int) -> float:
    """The best list schedule over all orders: for tasks that are there from the start one of them is optimal."""
    best = float("inf")
    for order in itertools.permutations(tasks):
        # starts at the ends of tasks placed before, in nondecreasing order of start
        placed: list[tuple[float, float, int]] = []
        now = 0.0
        for request in order:
            option = request.options[0]
            while sum(g for s, e, g in placed if s <= now < e) + option.num_gpus > num_gpus:
                now = min(e for _, e, _ in placed if e > now)
            placed.append((now, now + option.seconds, option.num_gpus))
        best = min(best, max(end for _, end, _ in placed))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_small_instances_match_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster.of_one_node(4)
    tasks = [task(f"t{i}", rng.choice([1, 2, 3]), rng.randint(1, 30)) for i in range(6)]
    best = best_by_brute_force(tasks, 4)
    # a unit of one second: nothing is rounded
    units = round(best_list_plan(tasks, cluster).makespan_seconds)
    plan = plan_placement(tasks, cluster, settings=PlacementSettings(num_units=units))
    assert plan.status is SolverStatus.OPTIMAL
    assert plan.makespan_seconds == pytest.approx(best, rel=1e-12)


def test_urgent_tasks_end_first_whatever_it_costs_the_rest() -> None:
    cluster = Cluster.of_one_node(2)
    tasks = [task("long", 2, 1000), task("urgent", 1, 100, priority=1), task("short", 1, 100)]
    plan = plan_placement(tasks, cluster)
    check_plan(plan, tasks, cluster)
    assert level_makespans(plan.placements)[0] == pytest.approx(100)
    ends = {placement.task_id: placement.end_seconds for placement in plan.placements}
    assert ends["urgent"] == pytest.approx(100)
    assert plan.makespan_seconds == pytest.approx(1100)


def test_the_solver_chooses_the_degree() -> None:
    wide_or_narrow = TaskRequest(
        task_id="either", options=(TaskOption(num_gpus=1, seconds=1000), TaskOption(num_gpus=4, seconds=300))
    )
    alone = plan_placement([wide_or_narrow], Cluster.of_one_node(4))
    assert alone.placements[0].num_gpus == 4
    # beside three tasks of 1000 s the narrow form ends with them, the wide one before or after them
    others = [task(f"other{i}", 1, 1000) for i in range(3)]
    together = plan_placement([wide_or_narrow, *others], Cluster.of_one_node(4))
    assert together.makespan_seconds == pytest.approx(1000)


def test_a_task_spans_nodes_only_if_it_asks_to() -> None:
    cluster = Cluster(nodes={"a": (0, 1), "b": (2, 3)})
    with pytest.raises(InputError, match=r"task wide: num_gpus: found 3; allowed: at most 2"):
        plan_placement([task("wide", 3, 10)], cluster)
    spanning = [task("wide", 3, 10, may_span=True), task("narrow", 1, 10)]
    plan = plan_placement(spanning, cluster)
    check_plan(plan, spanning, cluster)
    assert plan.makespan_seconds == pytest.approx(10)


def test_running_tasks_keep_their_gpus_and_late_tasks_wait() -> None:
    cluster = Cluster.of_one_node(4)
    running = [RunningTask(task_id="runs", gpu_ids=(1, 3), remaining_seconds=500)]
    tasks = [task("four", 4, 100), task("late", 2, 50, arrival=300), task("two", 2, 400)]
    plan = plan_placement(tasks, cluster, running=running)
    check_plan(plan, tasks, cluster, running=running)
    assert plan.makespan_seconds == pytest.approx(600)
    starts = {placement.task_id: placement.start_seconds for placement in plan.placements}
    assert starts["two"] == 0
    assert starts["late"] >= 300


def test_no_gpus_and_no_tasks() -> None:
    with pytest.raises(InputError, match=r"gpus: found 0"):
        plan_placement([task("any", 1, 1)], Cluster.of_one_node(0))
    empty = plan_placement([], Cluster.of_one_node(2))
    assert empty.placements == ()
    assert empty.status is SolverStatus.OPTIMAL
    assert empty.gap == 0


def test_at_the_limit_the_best_plan_so_far_comes_with_its_gap() -> None:
    rng = random.Random(3)
    tasks = [task(f"t{i}", rng.choice([1, 2, 3, 5]), rng.uniform(100, 5000)) for i in range(40)]
    cluster = Cluster.of_one_node(8)
    plan = plan_placement(tasks, cluster, settings=PlacementSettings(work_limit=0.02))
    check_plan(plan, tasks, cluster)
    assert plan.status in (SolverStatus.FEASIBLE, SolverStatus.HEURISTIC)
    assert plan.gap >= 0
    assert plan.makespan_seconds <= best_list_plan(tasks, cluster).makespan_seconds


def test_many_tasks_are_listed_without_a_solver() -> None:
    tasks = [task(f"t{i}", 1 + i % 3, 100 + 7 * i) for i in range(90)]
    cluster = Cluster.of_one_node(16)
    plan = plan_placement(tasks, cluster)
    check_plan(plan, tasks, cluster)
    assert plan.status is SolverStatus.HEURISTIC
    assert plan.gap < 0.1


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="above 0"):
        PlacementSettings(work_limit=0)
