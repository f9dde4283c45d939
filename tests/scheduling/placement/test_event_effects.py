"""What an event changes in the state of a cluster, and which events are refused."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterState,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskWithdrawn,
)
from cohort.scheduling.placement.event_effects import apply_arrivals, apply_event
from cohort.scheduling.placement.records import Cluster

from .placement_instances import task

STATE = ClusterState(
    cluster=Cluster.of_one_node(4),
    now_seconds=50,
    active=(ActiveTask(request=task("a", 2, 100), gpu_ids=(0, 1), started_seconds=0, expected_seconds=100),),
    waiting=(task("w", 2, 60),),
)


def test_a_task_that_failed_waits_with_what_no_checkpoint_holds() -> None:
    state, stopped = apply_event(STATE, TaskInterrupted(at_seconds=70, task_id="a", saved_share=0.6))
    assert stopped == ("a",)
    assert (state.now_seconds, state.active) == (70, ())
    assert {each.task_id: each.options[0].seconds for each in state.waiting} == {"w": 60, "a": pytest.approx(40)}


def test_arrivals_wait_and_are_no_task_twice() -> None:
    arrivals = [TaskArrived(at_seconds=60, request=task(name, 1, 1)) for name in ("x", "y")]
    assert [each.task_id for each in apply_arrivals(STATE, arrivals).waiting] == ["w", "x", "y"]
    with pytest.raises(ValueError, match="already exists"):
        apply_arrivals(STATE, [*arrivals, arrivals[0]])


def test_events_about_no_task_or_the_past_are_refused() -> None:
    with pytest.raises(ValueError, match="does not run"):
        apply_event(STATE, TaskEnded(at_seconds=60, task_id="w"))
    with pytest.raises(ValueError, match="there is no task"):
        apply_event(STATE, TaskWithdrawn(at_seconds=60, task_id="x"))
    with pytest.raises(ValueError, match="already exists"):
        apply_event(STATE, TaskArrived(at_seconds=60, request=task("w", 1, 1)))
    with pytest.raises(ValueError, match="the event of 10"):
        apply_event(STATE, TaskEnded(at_seconds=10, task_id="a"))
    with pytest.raises(InputError, match=r"task big: num_gpus"):
        apply_event(STATE, TaskArrived(at_seconds=60, request=task("big", 9, 1)))
