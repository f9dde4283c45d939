"""What follows from each event, and who gives way to whom."""

from __future__ import annotations

import pytest

from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterState,
    GpusGained,
    GpusLost,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskReestimated,
    TaskWithdrawn,
)
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster, RunningTask, TaskRequest
from cohort.scheduling.placement.replan import Replan, replan, running_tasks, start_due
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.scheduling.placement.verify import check_plan

from .placement_instances import task


def active(
    name: str, gpus: tuple[int, ...], *, seconds: float = 100, started: float = 0, saved: float = 0, priority: int = 0
) -> ActiveTask:
    return ActiveTask(
        request=task(name, len(gpus), seconds, priority=priority),
        gpu_ids=gpus,
        started_seconds=started,
        expected_seconds=seconds,
        saved_share=saved,
    )


def waiting_ids(decided: Replan) -> list[str]:
    return [request.task_id for request in decided.state.waiting]


def check(decided: Replan) -> None:
    assert decided.plan is not None
    state = decided.state
    check_plan(decided.plan, state.waiting, state.cluster, running=running_tasks(state))


FULL = ClusterState(
    cluster=Cluster.of_one_node(4),
    now_seconds=50,
    active=(active("a", (0, 1)), active("b", (2,), saved=0.25), active("c", (3,), started=40, saved=0.1)),
    waiting=(task("w", 2, 60),),
)


def test_an_arrival_is_planned_around_the_running() -> None:
    decided = replan(FULL, TaskArrived(at_seconds=60, request=task("n", 1, 10, arrival=60)))
    check(decided)
    assert decided.evicted == ()
    assert waiting_ids(decided) == ["w", "n"]
    assert decided.reason == "task n arrived"
    assert decided.plan is not None
    starts = {placement.task_id: placement.start_seconds for placement in decided.plan.placements}
    assert starts["a"] == starts["b"] == starts["c"] == 0
    assert starts["w"] == pytest.approx(40), "a and b end at 100"


def test_an_early_end_lets_the_next_start_at_once() -> None:
    decided = replan(FULL, TaskEnded(at_seconds=70, task_id="a"))
    check(decided)
    assert decided.plan is not None
    state, started = start_due(decided.state, decided.plan)
    assert [begun.request.task_id for begun in started] == ["w"]
    assert started[0].gpu_ids == (0, 1)
    assert started[0].started_seconds == 70
    assert state.waiting == ()
    assert {task.request.task_id for task in state.active} == {"b", "c", "w"}


def test_a_failed_task_waits_with_what_no_checkpoint_holds() -> None:
    decided = replan(FULL, TaskInterrupted(at_seconds=70, task_id="a", saved_share=0.6))
    check(decided)
    assert decided.interrupted == ("a",)
    again = next(request for request in decided.state.waiting if request.task_id == "a")
    assert again.options[0].seconds == pytest.approx(40)


def test_lost_gpus_take_their_tasks_along() -> None:
    decided = replan(FULL, GpusLost(at_seconds=70, gpu_ids=(1, 3), saved_shares=(("c", 0.5),)))
    check(decided)
    assert set(decided.interrupted) == {"a", "c"}
    assert decided.state.cluster.gpu_ids == (0, 2)
    left = {request.task_id: request.options[0].seconds for request in decided.state.waiting}
    assert left == {"w": pytest.approx(60), "a": pytest.approx(100), "c": pytest.approx(50)}


def test_tasks_that_no_gpus_hold_wait_for_gpus_to_come_back() -> None:
    lost = replan(FULL, GpusLost(at_seconds=70, gpu_ids=(0, 1, 3)))
    assert [request.task_id for request in lost.state.stranded] == ["w", "a"]
    check(lost)
    back = replan(lost.state, GpusGained(at_seconds=80, node="local", gpu_ids=(7, 8)))
    assert back.state.stranded == ()
    check(back)
    elsewhere = replan(lost.state, GpusGained(at_seconds=80, node="other", gpu_ids=(7,)))
    assert [request.task_id for request in elsewhere.state.stranded] == ["w", "a"], "one GPU on each of two nodes"


def test_an_urgent_task_makes_the_least_urgent_and_last_started_give_way() -> None:
    decided = replan(FULL, TaskArrived(at_seconds=60, request=task("u", 1, 10, priority=5)))
    check(decided)
    assert decided.evicted == ("c",), "the last that started"
    left = next(request for request in decided.state.waiting if request.task_id == "c")
    assert left.options[0].seconds == pytest.approx(90), "its checkpoint holds a tenth"
    assert decided.plan is not None
    urgent = next(placement for placement in decided.plan.placements if placement.task_id == "u")
    assert urgent.start_seconds == 0


def test_no_more_tasks_give_way_than_needed() -> None:
    state = ClusterState(cluster=Cluster.of_one_node(4), active=(active("a", (0,)), active("b", (1, 2, 3), started=0)))
    decided = replan(state, TaskArrived(at_seconds=1, request=task("u", 3, 10, priority=1)))
    assert decided.evicted == ("b",), "a alone would not do, and with b it is not needed"
    with_room = ClusterState(cluster=Cluster.of_one_node(4), active=(active("a", (0,)),))
    assert replan(with_room, TaskArrived(at_seconds=1, request=task("u", 3, 10, priority=1))).evicted == ()


def test_equal_priority_never_gives_way() -> None:
    state = ClusterState(cluster=Cluster.of_one_node(1), active=(active("a", (0,), priority=2),))
    assert replan(state, TaskArrived(at_seconds=1, request=task("u", 1, 1, priority=2))).evicted == ()
    assert replan(state, TaskArrived(at_seconds=1, request=task("u", 1, 1, priority=3))).evicted == ("a",)


def test_a_new_estimate_moves_what_waits_for_it() -> None:
    decided = replan(FULL, TaskReestimated(at_seconds=60, task_id="a", remaining_seconds=5))
    check(decided)
    assert decided.plan is not None
    starts = {placement.task_id: placement.start_seconds for placement in decided.plan.placements}
    assert starts["w"] == pytest.approx(5)


def test_withdrawing_running_and_waiting_tasks() -> None:
    decided = replan(FULL, TaskWithdrawn(at_seconds=60, task_id="a"))
    assert "a" not in {task.request.task_id for task in decided.state.active}
    check(decided)
    nothing = replan(FULL, TaskWithdrawn(at_seconds=60, task_id="w"))
    assert nothing.plan is None
    assert nothing.reason == "nothing waits"


def test_with_many_waiting_an_end_keeps_their_order() -> None:
    few = PlacementSettings(most_solver_tasks=2)
    waiting: tuple[TaskRequest, ...] = tuple(task(f"w{i}", 1, 100 - i) for i in range(5))
    state = ClusterState(cluster=Cluster.of_one_node(1), active=(active("a", (0,)),), waiting=waiting)
    first = replan(state, TaskArrived(at_seconds=1, request=task("last", 1, 50)), settings=few)
    check(first)
    assert first.plan is not None
    then = replan(first.state, TaskEnded(at_seconds=2, task_id="a"), previous=first.plan, settings=few)
    check(then)
    assert then.plan is not None
    order = [placement.task_id for placement in first.plan.placements if placement.task_id != "a"]
    assert [placement.task_id for placement in then.plan.placements] == order


def test_a_list_policy_can_plan_instead() -> None:
    decided = replan(FULL, TaskEnded(at_seconds=70, task_id="a"), policy=ListPolicy.SHORTEST_FIRST)
    assert decided.plan is not None
    assert decided.plan.policy == "shortest first"
    check(decided)


def test_an_overrunning_task_keeps_its_gpus() -> None:
    late = ClusterState(
        cluster=Cluster.of_one_node(1), now_seconds=150, active=(active("a", (0,)),), waiting=(task("w", 1, 1),)
    )
    pinned = running_tasks(late)
    assert pinned == [RunningTask(task_id="a", gpu_ids=(0,), remaining_seconds=1e-6)]
    decided = replan(late, TaskArrived(at_seconds=150, request=task("n", 1, 1)))
    assert decided.plan is not None
    _, started = start_due(decided.state, decided.plan)
    assert started == ()
