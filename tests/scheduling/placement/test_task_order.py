"""List policies by hand: their order, and that no later task delays an earlier one."""

from __future__ import annotations

import pytest

from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy, best_list_plan, list_plan
from cohort.scheduling.placement.verify import check_plan, placement_lower_bound

from .placement_instances import task

TASKS = [task("long", 1, 10.0), task("short", 1, 1.0), task("wide", 2, 4.0)]


@pytest.mark.parametrize(
    ("policy", "first", "makespan"),
    [
        (ListPolicy.FIRST_COME, "long", 14.0),
        (ListPolicy.SHORTEST_FIRST, "short", 15.0),
        (ListPolicy.WIDEST_FIRST, "wide", 14.0),
        (ListPolicy.LONGEST_FIRST, "long", 15.0),
    ],
)
def test_each_policy_by_hand(policy: ListPolicy, first: str, makespan: float) -> None:
    plan = list_plan(TASKS, Cluster.of_one_node(2), policy=policy)
    assert plan.placements[0].task_id == first
    assert (plan.makespan_seconds, plan.policy) == (makespan, policy.value)


def test_urgent_tasks_go_first_under_every_policy() -> None:
    tasks = [*TASKS, task("urgent", 2, 20.0, priority=1)]
    for policy in ListPolicy:
        assert list_plan(tasks, Cluster.of_one_node(2), policy=policy).placements[0].task_id == "urgent"
    assert best_list_plan(tasks, Cluster.of_one_node(2)).makespan_seconds == 34.0


@pytest.mark.parametrize("policy", list(ListPolicy))
def test_every_order_chooses_how_many_gpus_each_task_gets(policy: ListPolicy) -> None:
    # two GPUs take 7 s of what one does in 10: side by side the four end at 20 s, one after the other at 28 s
    tasks = [TaskRequest(task_id=name, options=(_option(1, 10.0), _option(2, 7.0))) for name in "abcd"]
    plan = list_plan(tasks, Cluster.of_one_node(2), policy=policy)
    assert plan.makespan_seconds == 20.0
    check_plan(plan, tasks, Cluster.of_one_node(2))


def test_one_task_of_a_list_is_given_more_gpus_than_the_others() -> None:
    # the long one on two GPUs (10 s), then the others side by side (5 s); all on one GPU take 20 s, all on two 18 s
    tasks = [
        TaskRequest(task_id="long", options=(_option(1, 20.0), _option(2, 10.0))),
        *(TaskRequest(task_id=name, options=(_option(1, 5.0), _option(2, 4.0))) for name in "ab"),
    ]
    plan = list_plan(tasks, Cluster.of_one_node(2), policy=ListPolicy.LONGEST_FIRST)
    assert plan.makespan_seconds == 15.0


def test_the_bound_of_a_list_is_that_of_all_options() -> None:
    tasks = [TaskRequest(task_id=name, options=(_option(1, 10.0), _option(2, 7.0))) for name in "abcd"]
    plan = list_plan(tasks, Cluster.of_one_node(2), policy=ListPolicy.FIRST_COME)
    assert plan.lower_bound_seconds == placement_lower_bound(tasks, Cluster.of_one_node(2))


def _option(num_gpus: int, seconds: float) -> TaskOption:
    return TaskOption(num_gpus=num_gpus, seconds=seconds)
