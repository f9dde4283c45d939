"""Each change of a task's state: stored, logged, and an event for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem
from cohort.scheduling.placement.cluster_events import (
    GpusLost,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskReestimated,
    TaskWithdrawn,
)
from cohort.scheduling.placement.records import Cluster, TaskOption
from cohort.task_queue.log import QueueLog
from cohort.task_queue.progress import SilentQueueWatcher
from cohort.task_queue.records import QueuedTask, RunStretch, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.task_states import TaskStates
from cohort.task_queue.workers.messages import Heartbeat


class Scene:
    """A queue of two tasks, ``a`` and ``b``, on one slot; the planner takes events when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.store = ManualClock(), QueueStore.open(folder / "queue.db", create=True)
        for name in ("a", "b"):
            self.store.add([QueuedTask(name=name, source="", task={}, digests={}, priority=0, added_at="")])
        self.log = QueueLog(self.store, clock=self.clock, watcher=SilentQueueWatcher(), directory=folder)
        self.replanner = Replanner(Cluster(nodes={"local": (0,)}), policy=None)
        self.states = TaskStates(
            self.store, self.log, self.replanner, directory=folder, expect=self.expect, settings=DispatcherSettings()
        )
        self.seconds = {"a": 100.0, "b": 10.0}

    def expect(self, task: QueuedTask) -> tuple[TaskOption, ...]:
        if task.name not in self.seconds:
            raise InputError(Problem(where=task.name, found="80 GiB", allowed="16 GiB", hint="Choose a smaller model."))
        return (TaskOption(num_gpus=1, seconds=self.seconds[task.name]),)

    def plan(self) -> None:
        events, self.states.events = self.states.events, []
        self.replanner.take(events, saved_shares=self.states.done_shares())

    def begin(self) -> str:
        self.states.look_at_queue()
        self.plan()
        (running,) = self.replanner.wanted_in(0)
        self.states.begun(running, device="cpu")
        return running

    def state(self, name: str) -> tuple[TaskState, str]:
        task = self.store.task(name)
        assert task is not None
        return task.state, task.reason


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.store.close()


def test_waiting_tasks_arrive_once(scene: Scene) -> None:
    scene.states.look_at_queue()
    scene.states.look_at_queue()
    arrivals = [event for event in scene.states.events if isinstance(event, TaskArrived)]
    assert [event.request.task_id for event in arrivals] == ["a", "b"]
    assert [task.expected_seconds for task in scene.store.tasks()] == [100.0, 10.0]


def test_a_task_that_fits_no_slot_fails_at_once(scene: Scene) -> None:
    del scene.seconds["b"]
    scene.states.look_at_queue()
    assert scene.state("b")[0] is TaskState.FAILED
    assert "80 GiB" in scene.state("b")[1]
    assert len(scene.states.events) == 1


def test_a_task_that_ends_leaves_the_plan(scene: Scene) -> None:
    name = scene.begin()
    assert scene.state(name)[0] is TaskState.RUNNING
    scene.states.done(name)
    assert scene.state(name) == (TaskState.DONE, "")
    assert [type(event) for event in scene.states.events] == [TaskEnded]


def test_faults_without_progress_count_and_progress_begins_again(scene: Scene) -> None:
    name = scene.begin()
    for steps, attempts in ((0, 1), (0, 2), (5, 1), (5, 2)):
        scene.states.take_heartbeat(name, Heartbeat(task=name, steps_done=steps))
        scene.states.failed(name, "out of memory")
        task = scene.store.task(name)
        assert task is not None
        assert (task.state, task.attempts) == (TaskState.QUEUED, attempts)
    assert all(isinstance(event, TaskInterrupted) for event in scene.states.events)
    scene.states.failed(name, "out of memory")
    assert scene.state(name) == (TaskState.FAILED, "out of memory (3 attempts)")
    assert isinstance(scene.states.events[-1], TaskWithdrawn)


def test_the_users_mistake_is_final(scene: Scene) -> None:
    name = scene.begin()
    scene.states.failed(name, "no such column", is_final=True)
    assert scene.state(name) == (TaskState.FAILED, "no such column")


def test_a_lost_slot_is_no_fault_of_its_task(scene: Scene) -> None:
    name = scene.begin()
    scene.states.lost_slots((0,), [name], reason="node lost")
    task = scene.store.task(name)
    assert task is not None
    assert (task.state, task.reason, task.attempts) == (TaskState.QUEUED, "node lost", 0)
    (event,) = scene.states.events
    assert isinstance(event, GpusLost)
    assert event.gpu_ids == (0,)


def test_a_task_arrives_only_where_there_is_a_slot(scene: Scene) -> None:
    scene.states.lost_slots((0,), [], reason="node lost")
    scene.states.look_at_queue()
    assert [type(event) for event in scene.states.events] == [GpusLost]
    scene.plan()
    scene.states.look_at_queue()
    assert scene.states.events == []


def test_removing_a_waiting_task_undoes_an_arrival_the_planner_has_not_seen(scene: Scene) -> None:
    scene.states.look_at_queue()
    scene.store.update("b", is_withdrawn=True)
    scene.states.look_at_queue()
    assert scene.state("b")[0] is TaskState.REMOVED
    assert [type(event) for event in scene.states.events] == [TaskArrived]


def test_a_running_task_is_removed_when_its_worker_has_stopped(scene: Scene) -> None:
    name = scene.begin()
    scene.store.update(name, is_withdrawn=True)
    scene.states.look_at_queue()
    scene.states.look_at_queue()
    assert scene.state(name)[0] is TaskState.RUNNING
    assert [type(event) for event in scene.states.events] == [TaskWithdrawn]
    scene.plan()
    scene.states.stopped(name, was_asked=True)
    assert scene.state(name) == (TaskState.REMOVED, "removed by the user")


def test_a_worker_that_was_stopped_from_outside_is_a_fault(scene: Scene) -> None:
    name = scene.begin()
    scene.states.stopped(name, was_asked=False)
    assert scene.state(name) == (TaskState.QUEUED, "its worker was stopped from outside")


def test_only_an_end_that_moves_far_is_planned_again(scene: Scene) -> None:
    name = scene.begin()
    left = scene.seconds[name]

    def told(seconds_left: float, **fields: int) -> int:
        beat = Heartbeat(task=name, phase="training", seconds_left=seconds_left, num_trials=4, **fields)
        scene.states.take_heartbeat(name, beat)
        return len(scene.states.events)

    assert told(left * 1.05) == 0
    assert told(left / 2, num_early=2) == 1
    # not twice within two seconds
    assert told(left / 4) == 1
    (event,) = scene.states.events
    assert isinstance(event, TaskReestimated)
    assert event.remaining_seconds == left / 2
    assert "2 of 4 trials have exited early" in scene.store.decisions()[-1].text


def test_what_a_killed_dispatcher_left_waits_again(scene: Scene) -> None:
    scene.store.update("a", state=TaskState.RUNNING)
    scene.store.begin_stretch(RunStretch(task="a", slot_id=0, device="cpu", start_seconds=0.0))
    scene.log.last_dispatcher_seconds = 7.0
    scene.clock.advance(60)
    scene.states.recover()
    assert scene.state("a") == (TaskState.QUEUED, "the dispatcher before this one died")
    (stretch,) = scene.store.stretches()
    assert (stretch.end_seconds, stretch.outcome) == (7.0, "the dispatcher died")


def test_the_done_share_follows_the_runs_own_prediction(scene: Scene) -> None:
    name = scene.begin()
    scene.clock.advance(5)
    scene.states.take_heartbeat(name, Heartbeat(task=name, phase="training", seconds_left=15.0))
    assert scene.states.done_shares() == {name: pytest.approx(0.25)}
    # never all of it, and nothing is saved without a checkpoint
    scene.states.take_heartbeat(name, Heartbeat(task=name, phase="training", seconds_left=0.0))
    assert scene.states.done_shares() == {name: 0.99}
    active = scene.replanner.active(name)
    assert active is not None
    assert scene.states.saved_share(active) == 0.0
