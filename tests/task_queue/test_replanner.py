"""The live plan, event by event."""

from __future__ import annotations

from cohort.scheduling.placement.cluster_events import GpusLost, TaskArrived, TaskEnded
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.task_queue.replanner import Replanner


def arrived(name: str, seconds: float, *, at: float = 0.0, priority: int = 0) -> TaskArrived:
    options = (TaskOption(num_gpus=1, seconds=seconds),)
    return TaskArrived(at_seconds=at, request=TaskRequest(task_id=name, options=options, priority=priority))


def planner(num_slots: int = 1) -> Replanner:
    return Replanner(Cluster(nodes={"local": tuple(range(num_slots))}), policy=None)


def test_events_of_one_turn_make_one_plan() -> None:
    replanner = planner()
    changes = replanner.take([arrived("a", 30.0), arrived("b", 10.0)], saved_shares={})
    assert changes.plan is not None
    assert len(changes.plan.placements) == 2
    assert "and 1 more event" in changes.reason
    (first,) = changes.started
    (waits,) = {"a", "b"} - {first.request.task_id}
    assert replanner.wanted_in(0) == (first.request.task_id,)
    assert replanner.is_waiting(waits)
    assert replanner.active(waits) is None


def test_the_next_task_takes_the_slot_of_one_that_ended() -> None:
    replanner = planner()
    replanner.take([arrived("a", 30.0)], saved_shares={})
    replanner.take([arrived("b", 10.0, at=1.0)], saved_shares={"a": 0.1})
    changes = replanner.take([TaskEnded(at_seconds=30.0, task_id="a")], saved_shares={})
    assert [task.request.task_id for task in changes.started] == ["b"]
    assert replanner.wanted_in(0) == ("b",)
    changes = replanner.take([TaskEnded(at_seconds=40.0, task_id="b")], saved_shares={})
    assert changes.plan is None
    assert replanner.wanted_in(0) == ()


def test_an_urgent_task_evicts_and_what_was_saved_is_kept() -> None:
    replanner = planner()
    replanner.take([arrived("low", 100.0)], saved_shares={})
    changes = replanner.take([arrived("urgent", 10.0, at=50.0, priority=5)], saved_shares={"low": 0.5})
    assert changes.evicted == ("low",)
    assert replanner.wanted_in(0) == ("urgent",)
    (left,) = (task for task in replanner.state.waiting if task.task_id == "low")
    assert 49 < left.seconds_on(1) < 51


def test_time_never_goes_back() -> None:
    replanner = planner()
    replanner.take([arrived("a", 30.0, at=20.0)], saved_shares={})
    replanner.advance(10.0)
    assert replanner.state.now_seconds == 20.0
    replanner.advance(25.0)
    assert replanner.state.now_seconds == 25.0


def test_a_task_whose_slot_is_lost_waits_for_another() -> None:
    replanner = planner()
    replanner.take([arrived("a", 30.0)], saved_shares={})
    replanner.take([GpusLost(at_seconds=5.0, gpu_ids=(0,), saved_shares=(("a", 0.1),))], saved_shares={})
    assert replanner.active("a") is None
    assert replanner.is_waiting("a")
