"""What a list leaves idle is filled, no task starts later for it, and long queues have plans too."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster, RunningTask, TaskRequest
from cohort.scheduling.placement.rolling_plan import fill_idle_nodes
from cohort.scheduling.placement.task_order import plan_in_order, with_least_work
from cohort.scheduling.placement.task_planner import plan_placement
from cohort.scheduling.placement.verify import check_plan

from .placement_instances import task

SETTINGS = PlacementSettings()


def starts(order: list[TaskRequest], cluster: Cluster, *running: RunningTask) -> dict[str, float]:
    listed = plan_in_order(order, cluster, running=running, policy="list")
    plan = fill_idle_nodes(listed, order, cluster, running=running, settings=SETTINGS)
    check_plan(plan, order, cluster, running=running)
    return {placed.task_id: placed.start_seconds for placed in plan.placements}


def test_a_short_task_runs_while_a_wide_one_waits() -> None:
    held = RunningTask(task_id="held", gpu_ids=(0,), remaining_seconds=100.0)
    found = starts([task("wide", 2, 50), task("short", 1, 80)], Cluster.of_one_node(2), held)
    assert (found["short"], found["wide"]) == (0.0, 100.0)


def test_a_long_task_does_not_delay_the_wide_one_before_it() -> None:
    held = RunningTask(task_id="held", gpu_ids=(0,), remaining_seconds=100.0)
    found = starts([task("wide", 2, 50), task("long", 1, 300)], Cluster.of_one_node(2), held)
    assert (found["wide"], found["long"]) == (100.0, 150.0)


def test_a_wide_task_is_not_overtaken_for_ever() -> None:
    """Short tasks come all the time; at each look the wide one is planned for the same moment."""
    cluster = Cluster.of_one_node(2)
    for now in range(0, 100, 10):
        held = RunningTask(task_id="held", gpu_ids=(0,), remaining_seconds=100.0 - now)
        order = [task("wide", 2, 50), *(task(f"short{now}{n}", 1, 60) for n in range(5))]
        assert starts(order, cluster, held)["wide"] == 100.0 - now


@pytest.mark.parametrize("seed", range(12))
def test_random_lists_are_plans_and_nobody_starts_later(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(nodes={f"node{n}": tuple(range(8 * n, 8 * n + 8)) for n in range(3)})
    order = [task(f"t{n}", rng.choice((1, 1, 1, 2, 4, 8)), rng.uniform(60, 3000)) for n in range(60)]
    running = [
        RunningTask(task_id=f"r{gpu}", gpu_ids=(gpu,), remaining_seconds=rng.uniform(1, 2000))
        for gpu in cluster.gpu_ids
        if rng.random() < 0.6
    ]
    listed = plan_in_order(order, cluster, running=running, policy="list")
    plan = fill_idle_nodes(listed, order, cluster, running=running, settings=SETTINGS)
    check_plan(plan, order, cluster, running=running)
    assert plan.makespan_seconds <= listed.makespan_seconds
    before = {placed.task_id: placed for placed in listed.placements}
    # rounded to a two-hundredth of the window; tasks behind the window go where there is room
    window = [placed for placed in plan.placements if before[placed.task_id].start_seconds < 1000]
    assert all(placed.start_seconds <= before[placed.task_id].start_seconds + 60 for placed in window)
    busy = [sum(placed.num_gpus for placed in one.placements if placed.start_seconds <= 0) for one in (plan, listed)]
    assert busy[0] >= busy[1]


def test_a_queue_of_thousands_has_a_plan_near_its_bound() -> None:
    rng = random.Random(0)
    cluster = Cluster(nodes={f"node{n}": tuple(range(8 * n, 8 * n + 8)) for n in range(16)})
    order = [task(f"t{n}", rng.choice((1, 1, 1, 2, 4)), rng.lognormvariate(6.5, 0.8)) for n in range(1500)]
    plan = plan_placement(order, cluster, settings=SETTINGS)
    check_plan(plan, order, cluster)
    assert plan.gap < 0.02


def test_least_work_is_the_width_with_the_fewest_gpu_seconds() -> None:
    wide = TaskRequest(task_id="a", options=(task("", 4, 30).options[0], task("", 1, 100).options[0]))
    (narrow,) = with_least_work([wide], Cluster.of_one_node(4))
    assert [option.num_gpus for option in narrow.options] == [1]
