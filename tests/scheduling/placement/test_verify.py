"""The checker finds what is wrong with a plan, and its bound is one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cohort.scheduling.placement.records import Cluster, PlacementPlan, RunningTask, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, list_plan
from cohort.scheduling.placement.verify import PlanError, check_plan, find_plan_faults, placement_lower_bound

from .placement_instances import task

TASKS = [task("a", 2, 100), task("b", 2, 100, arrival=20), task("c", 1, 50)]
CLUSTER = Cluster(nodes={"x": (0, 1), "y": (2, 3)})
GOOD = list_plan(TASKS, CLUSTER, policy=ListPolicy.FIRST_COME)


def with_change(name: str, **changes: Any) -> PlacementPlan:
    placements = tuple(
        dataclasses.replace(placement, **changes) if placement.task_id == name else placement
        for placement in GOOD.placements
    )
    return dataclasses.replace(GOOD, placements=placements)


def test_a_good_plan_has_no_faults() -> None:
    assert find_plan_faults(GOOD, TASKS, CLUSTER) == ()
    check_plan(GOOD, TASKS, CLUSTER)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("a", {"gpu_ids": (0, 7)}, "not GPUs of the cluster"),
        ("a", {"gpu_ids": (0, 0)}, "not GPUs of the cluster"),
        ("a", {"gpu_ids": (0, 2)}, "does not ask to span nodes"),
        ("a", {"gpu_ids": (0,)}, "none of its options"),
        ("a", {"end_seconds": 90.0}, "takes 100 s"),
        ("b", {"start_seconds": 10.0, "end_seconds": 110.0}, "arrives at 20"),
        ("c", {"gpu_ids": (0,), "start_seconds": 30.0, "end_seconds": 80.0}, "GPU 0 is held by"),
        ("c", {"priority": 3}, "has priority 0"),
        ("c", {"task_id": "d"}, "tasks are placed"),
    ],
)
def test_each_fault_is_found(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_plan(with_change(name, **changes), TASKS, CLUSTER)


def test_a_claimed_bound_above_the_plan_is_a_fault() -> None:
    assert find_plan_faults(dataclasses.replace(GOOD, lower_bound_seconds=1e6), TASKS, CLUSTER)


def test_moving_a_running_task_is_a_fault() -> None:
    running = [RunningTask(task_id="r", gpu_ids=(0,), remaining_seconds=30)]
    plan = list_plan(TASKS, CLUSTER, policy=ListPolicy.FIRST_COME, running=running)
    check_plan(plan, TASKS, CLUSTER, running=running)
    moved = dataclasses.replace(running[0], gpu_ids=(3,))
    assert any("moves it" in fault for fault in find_plan_faults(plan, TASKS, CLUSTER, running=[moved]))
    longer = dataclasses.replace(running[0], remaining_seconds=40)
    assert any("has 40 s left" in fault for fault in find_plan_faults(plan, TASKS, CLUSTER, running=[longer]))


@pytest.mark.parametrize(
    ("tasks", "bound"),
    [
        ([task("a", 1, 100)], 100.0),
        ([task("a", 4, 100), task("b", 4, 50)], 150.0),  # area
        ([task("a", 3, 100), task("b", 3, 50)], 150.0),  # more than half of 4 GPUs each: one after the other
        ([task("a", 2, 100), task("b", 2, 50)], 100.0),  # half is not more than half
        ([task("a", 1, 10), task("b", 1, 10, arrival=100)], 110.0),
        ([task("a", 1, 10), task("b", 3, 50, arrival=100), task("c", 3, 50, arrival=90)], 190.0),
    ],
)
def test_the_bound_by_hand(tasks: list[TaskRequest], bound: float) -> None:
    assert placement_lower_bound(tasks, Cluster.of_one_node(4)) == pytest.approx(bound)


def test_the_bound_takes_the_least_of_several_options() -> None:
    either = TaskRequest(
        task_id="either", options=(TaskOption(num_gpus=1, seconds=100), TaskOption(num_gpus=4, seconds=40))
    )
    assert placement_lower_bound([either], Cluster.of_one_node(4)) == pytest.approx(40)
    # least work: 4 x 100 GPU-seconds
    assert placement_lower_bound([either] * 4, Cluster.of_one_node(4)) == pytest.approx(100)


def test_running_tasks_count() -> None:
    running = [RunningTask(task_id="r", gpu_ids=(0, 1, 2), remaining_seconds=70)]
    assert placement_lower_bound([task("a", 3, 50)], Cluster.of_one_node(4), running=running) == pytest.approx(120)
