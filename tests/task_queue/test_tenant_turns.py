"""Tenants of one queue get its GPUs by their shares, through the planner that the dispatcher uses."""

from __future__ import annotations

import json

import pytest

from cohort.scheduling.placement.cluster_events import TaskArrived, TaskEnded
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.tenant_turns import FairTurns


def arrived(name: str, *, at: float = 0.0, seconds: float = 100.0, weight: float = 1.0) -> TaskArrived:
    options = (TaskOption(num_gpus=1, seconds=seconds),)
    return TaskArrived(at_seconds=at, request=TaskRequest(task_id=name, options=options, tenant=name[0], weight=weight))


def work_off(replanner: Replanner, *, ends_after: float = 1.0) -> list[str]:
    """End tasks in the order of their starts, each at a share of what was expected; return the order."""
    order, now = [], replanner.state.now_seconds
    while replanner.state.active:
        task = replanner.state.active[0]
        order.append(task.request.task_id)
        now = max(now, task.started_seconds + ends_after * task.expected_seconds)
        replanner.take([TaskEnded(at_seconds=now, task_id=task.request.task_id)], saved_shares={})
    return order


def test_a_flood_waits_behind_the_first_task_of_another() -> None:
    replanner = Replanner(Cluster.of_one_node(1), policy=None)
    replanner.take([arrived(f"a{number}") for number in range(60)], saved_shares={})
    replanner.take([arrived(f"b{number}", at=1.0) for number in range(3)], saved_shares={})
    assert work_off(replanner)[:7] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3"]


def test_weights_are_shares_of_gpu_time_also_of_tasks_that_end_early() -> None:
    replanner = Replanner(Cluster.of_one_node(1), policy=None)
    both = [arrived(f"a{n}", weight=3.0) for n in range(60)] + [arrived(f"b{n}", seconds=50.0) for n in range(60)]
    replanner.take(both, saved_shares={})
    order = work_off(replanner, ends_after=0.25)[:50]
    seconds = sum(100.0 for name in order if name[0] == "a"), sum(50.0 for name in order if name[0] == "b")
    assert seconds[0] / sum(seconds) == pytest.approx(0.75, abs=0.03)


def test_a_queue_without_tenants_is_planned_as_before() -> None:
    replanner = Replanner(Cluster.of_one_node(2), policy=None)
    requests = [
        TaskRequest(task_id=name, options=(TaskOption(num_gpus=1, seconds=seconds),))
        for name, seconds in (("short", 10.0), ("other", 10.0), ("long", 20.0))
    ]
    changes = replanner.take([TaskArrived(at_seconds=0.0, request=request) for request in requests], saved_shares={})
    assert changes.plan is not None
    assert changes.plan.makespan_seconds == 20.0


def test_a_dispatcher_that_starts_again_keeps_what_was_charged() -> None:
    replanner = Replanner(Cluster.of_one_node(1), policy=None)
    replanner.take([arrived("a0"), arrived("a1"), arrived("b0")], saved_shares={})
    replanner.take([TaskEnded(at_seconds=100.0, task_id="a0")], saved_shares={})
    record = json.loads(json.dumps(replanner.turns.to_record()))
    again = Replanner(Cluster.of_one_node(1), policy=None, turns=FairTurns(record))
    again.take([arrived("a1", at=200.0), arrived("c0", at=200.0)], saved_shares={})
    assert work_off(again) == ["c0", "a1"], "a had its turn before; all even, a1 would be first"


def test_the_last_task_is_charged_when_it_ends() -> None:
    replanner = Replanner(Cluster.of_one_node(1), policy=None)
    replanner.take([arrived("a0")], saved_shares={})
    replanner.take([TaskEnded(at_seconds=100.0, task_id="a0")], saved_shares={})
    assert replanner.turns.to_record()["running"] == {}
    assert replanner.turns.to_record()["tags"] == {"a": 100.0}
