"""Who joins an executor that has room, and what the plan makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.scheduling.placement.cluster_events import ActiveTask, ClusterState, RoomFound, TaskArrived, TaskEnded
from cohort.scheduling.placement.records import Cluster, TaskRequest
from cohort.scheduling.placement.replan import Replan, replan, running_tasks, start_due
from cohort.scheduling.placement.sharing import MOST_SHARING
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.scheduling.placement.verify import check_plan
from tests.scheduling.placement.placement_instances import small_work, task


def request(name: str, seconds: float = 10.0, *, priority: int = 0, key: str = "one base") -> TaskRequest:
    return replace(task(name, 1, seconds, priority=priority), work=small_work(key, seconds=seconds))


def state_of(host: TaskRequest, *waiting: TaskRequest, num_gpus: int = 1) -> ClusterState:
    active = ActiveTask(request=host, gpu_ids=(0,), started_seconds=0.0, expected_seconds=host.seconds_on(1))
    return ClusterState(cluster=Cluster.of_one_node(num_gpus), active=(active,), waiting=waiting)


def found_room(state: ClusterState, *names: str) -> Replan:
    """What follows from room next to ``names``, by the plan that stands."""
    works = {entry.request.task_id: entry.request.work or small_work() for entry in state.active}
    arrived = TaskArrived(at_seconds=0.0, request=task("later", 1, 1e4, priority=-5))
    standing = replan(state, arrived, policy=ListPolicy.SHORTEST_FIRST)
    event = RoomFound(at_seconds=0.0, works=tuple((name, works[name]) for name in names))
    return replan(standing.state, event, previous=standing.plan, policy=ListPolicy.SHORTEST_FIRST)


def test_the_next_task_of_the_plan_joins_and_all_end_sooner() -> None:
    found = found_room(state_of(request("host"), request("other"), request("foreign", key="another base")), "host")
    joined = found.joined
    assert joined is not None
    assert (joined.task.request.task_id, joined.hosts) == ("other", ("host",))
    # both take as long as one: a step of two trials costs what a step of one does
    assert joined.seconds == pytest.approx(10.0)
    assert joined.seconds_apart == pytest.approx(20.0)
    names = [entry.request.task_id for entry in found.state.active]
    assert names == ["host", "other"]
    assert {entry.gpu_ids for entry in found.state.active} == {(0,)}
    # planners see one task that holds the GPU, and the plan passes the independent check
    (running,) = running_tasks(found.state)
    assert running.remaining_seconds == pytest.approx(10.0)
    assert found.plan is not None
    check_plan(found.plan, found.state.waiting, found.state.cluster, running=[running])
    # the GPU is held until both have ended
    ended = replan(found.state, TaskEnded(at_seconds=5.0, task_id="host"), previous=found.plan)
    assert ended.plan is not None
    _, started = start_due(ended.state, ended.plan)
    assert not started


@pytest.mark.parametrize(
    ("host", "waiting", "why"),
    [
        (request("host"), request("other", key="another base"), "another base model"),
        (request("host"), task("other", 1, 10.0), "it shares with none"),
        (request("host"), request("other", priority=-1), "each pass that holds more takes longer"),
        (request("host", priority=-1), request("other", priority=-2), "a task in between"),
    ],
)
def test_who_does_not_join(host: TaskRequest, waiting: TaskRequest, why: str) -> None:
    assert found_room(state_of(host, waiting), "host").joined is None, why


def test_no_task_joins_where_steps_only_become_longer() -> None:
    host, other = request("host"), request("other")
    work = small_work(seconds=10.0)
    dear = replace(work, cost=replace(work.cost, fixed_seconds=0.0, seconds_per_token=1e-3))
    state = state_of(replace(host, work=dear), replace(other, work=dear))
    assert found_room(state, "host").joined is None
    # but what starting another worker takes is spared
    late = replace(state, waiting=(replace(other, work=replace(dear, start_seconds=5.0)),))
    assert found_room(late, "host").joined is not None


def test_a_task_that_the_plan_has_elsewhere_does_not_join() -> None:
    # two GPUs: the other one ends first, so the plan has the waiting task there
    state = state_of(request("host", 50.0), request("waiting"), num_gpus=2)
    short = ActiveTask(request=request("short", 5.0), gpu_ids=(1,), started_seconds=0.0, expected_seconds=5.0)
    state = replace(state, active=(*state.active, short))
    assert found_room(state, "host").joined is None
    assert found_room(state, "short").joined is not None


def test_an_executor_takes_few_tasks_and_all_give_way_together() -> None:
    state = state_of(request("t0"), *(request(f"t{n}") for n in range(1, MOST_SHARING + 1)))
    names = ["t0"]
    for _ in range(MOST_SHARING - 1):
        found = found_room(state, *names)
        state = replace(found.state, waiting=tuple(t for t in found.state.waiting if t.task_id != "later"))
        assert found.joined is not None
        names.append(found.joined.task.request.task_id)
    assert found_room(state, *names).joined is None
    urgent = replan(state, TaskArrived(at_seconds=0.0, request=task("urgent", 1, 5.0, priority=3)))
    assert set(urgent.evicted) == set(names)
    # what gave way goes on by itself
    assert all(entry.work is None for entry in urgent.state.waiting if entry.task_id in names)
