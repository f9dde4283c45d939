"""List policies by hand: their order, and that no later task delays an earlier one."""

from __future__ import annotations

import pytest

from cohort.scheduling.placement.list_policies import ListPolicy, best_list_plan, list_plan
from cohort.scheduling.placement.records import Cluster

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
