"""Tasks and GPUs: what can be placed, and what cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.core.errors import InputError
from cohort.scheduling.placement.records import (
    Cluster,
    Placement,
    TaskOption,
    level_makespans,
)
from cohort.scheduling.placement.task_planner import plan_placement

from .placement_instances import task


def test_every_unplaceable_task_is_named() -> None:
    with pytest.raises(InputError) as caught:
        plan_placement([task("a", 4, 1), task("b", 1, 1), task("c", 3, 1)], Cluster.of_one_node(2))
    assert [str(problem.where) for problem in caught.value.problems] == ["task a: num_gpus", "task c: num_gpus"]


def test_gpus_leave_and_join_a_cluster() -> None:
    cluster = Cluster(nodes={"a": (0, 1), "b": (2,)})
    assert cluster.without([0, 2]).nodes == {"a": (1,)}
    assert cluster.with_gpus([3], node="b").gpu_ids == (0, 1, 2, 3)
    assert cluster.most_gpus_for(task("x", 1, 1.0)) == 2
    assert cluster.most_gpus_for(task("x", 1, 1.0, may_span=True)) == 3
    with pytest.raises(ValueError, match="belongs to one node"):
        Cluster(nodes={"a": (0,), "b": (0,)})


def test_each_number_of_gpus_has_its_own_time() -> None:
    options = tuple(TaskOption(num_gpus=count, seconds=seconds) for count, seconds in ((4, 3.0), (1, 8.0), (2, 5.0)))
    given = replace(task("x", 1, 1.0), options=options)
    assert [given.seconds_on(count) for count in (1, 2, 4)] == [8.0, 5.0, 3.0]


def test_less_work_left_shortens_every_option() -> None:
    assert task("x", 2, 100.0).remaining(0.25).seconds_on(2) == 25.0
    with pytest.raises(ValueError, match="positive time"):
        TaskOption(num_gpus=1, seconds=0.0)


def test_the_gap_is_the_share_by_which_a_plan_is_longer_than_the_bound() -> None:
    cluster = Cluster.of_one_node(1)
    plan = plan_placement([task("a", 1, 3.0), task("b", 1, 2.0)], cluster)
    assert (plan.makespan_seconds, plan.gap) == (5.0, 0.0)
    assert replace(plan, lower_bound_seconds=4.0).gap == 0.25
    assert replace(plan, lower_bound_seconds=0.0).gap == 0.0


def test_plans_are_compared_by_the_end_of_the_urgent_first() -> None:
    def placed(name: str, end: float, priority: int) -> Placement:
        return Placement(task_id=name, gpu_ids=(0,), start_seconds=0.0, end_seconds=end, priority=priority)

    assert level_makespans([placed("a", 5.0, 0), placed("b", 2.0, 1), placed("c", 3.0, 1)]) == (3.0, 5.0)
