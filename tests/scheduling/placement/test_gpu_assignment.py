"""From a coarse plan to GPUs: exact starts are never later than planned."""

from __future__ import annotations

from cohort.scheduling.placement.gpu_assignment import CoarsePlacement, assign_gpus
from cohort.scheduling.placement.records import Cluster, RunningTask

from .placement_instances import task


def coarse(name: str, start: int, end: int, count: int) -> CoarsePlacement:
    return CoarsePlacement(task_id=name, start=start, end=end, gpus_by_node={"local": count})


def test_a_task_starts_as_soon_as_its_gpus_are_free_in_exact_seconds() -> None:
    # units of ten seconds, rounded up: both tasks are planned for whole units and need less
    tasks = [task("a", 2, 15.0), task("b", 1, 7.0, arrival=3.0)]
    plan = {
        p.task_id: p for p in assign_gpus([coarse("a", 0, 2, 2), coarse("b", 2, 3, 1)], tasks, Cluster.of_one_node(2))
    }
    assert (plan["a"].gpu_ids, plan["a"].start_seconds, plan["a"].end_seconds) == ((0, 1), 0.0, 15.0)
    assert (plan["b"].start_seconds, plan["b"].end_seconds) == (15.0, 22.0)


def test_what_runs_keeps_its_gpus_and_others_take_the_free_ones() -> None:
    running = [RunningTask(task_id="held", gpu_ids=(0,), remaining_seconds=5.0)]
    plan = assign_gpus([coarse("a", 0, 1, 1)], [task("a", 1, 2.0)], Cluster.of_one_node(2), running=running)
    assert {p.task_id: p.gpu_ids for p in plan} == {"held": (0,), "a": (1,)}
