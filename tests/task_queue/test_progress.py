"""A queue at one moment: the same for those who watch it live and for another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.machine.cluster.worker_pool import Slot
from cohort.scheduling.placement.cluster_events import TaskArrived
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.task_queue.progress import view_queue
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.messages import Heartbeat
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState


@pytest.fixture
def store(tmp_path: Path) -> QueueStore:
    store = QueueStore.open(tmp_path / "queue.db", create=True)
    store.add([QueuedTask(name=n, source="", task={}, digests={}, priority=0, added_at="") for n in ("a", "b", "c")])
    store.update("a", state=TaskState.RUNNING)
    store.update("c", state=TaskState.DONE)
    for task, start, end in (("c", 0.0, 5.0), ("a", 6.0, None)):
        store.begin_stretch(RunStretch(task=task, slot_id=0, device="cpu 0", start_seconds=start))
        if end is not None:
            store.end_stretches(task=task, seconds=end, outcome="done")
    placements = [
        {"task": name, "slots": [0], "start_seconds": start, "end_seconds": end}
        for name, start, end in (("a", 6.0, 50.0), ("b", 50.0, 80.0), ("c", 0.0, 5.0))
    ]
    store.record(TaskDecision(seconds=0.0, kind="plan", task="", text="", numbers={"placements": placements}))
    return store


def test_another_process_shows_the_last_recorded_plan(store: QueueStore) -> None:
    progress = view_queue(store, now=20.0)
    a, b, c = progress.tasks
    assert (a.device, a.expected_start, a.expected_end, a.actual_start, a.actual_end) == ("cpu 0", 6.0, 50.0, 6.0, None)
    assert (b.device, b.expected_start, b.expected_end, b.share_done) == ("", 50.0, 80.0, None)
    # what has ended expects nothing more
    assert (c.device, c.expected_end, c.actual_end, c.held_seconds) == ("", None, 5.0, 5.0)
    assert (progress.end_seconds, progress.num_plans, progress.slots) == (80.0, 1, ())
    assert [progress.count(state) for state in (TaskState.RUNNING, TaskState.DONE, TaskState.FAILED)] == [1, 1, 0]


def test_the_dispatcher_shows_how_far_tasks_are_and_where_ends_moved(store: QueueStore) -> None:
    replanner = Replanner(Cluster(nodes={"local": (0,)}), policy=None)
    request = TaskRequest(task_id="a", options=(TaskOption(num_gpus=1, seconds=30.0),))
    replanner.take([TaskArrived(at_seconds=6.0, request=request)], saved_shares={})
    slot = WorkerSlot(slot=Slot(slot_id=0, node="local", device="gpu 0"), state=WorkerSlotState.BUSY, tasks=["a"])
    beat = Heartbeat(task="a", phase="training", steps_done=3, planned_steps=12, num_trials=4, num_early=1, num_ended=2)
    progress = view_queue(store, now=20.0, replanner=replanner, worker_slots=[slot], heartbeats={"a": beat, "b": beat})
    a, b, _ = progress.tasks
    assert (a.phase, a.share_done, a.num_trials, a.num_ended, a.num_early) == ("training", 0.25, 4, 2, 1)
    assert (a.expected_start, a.expected_end) == (6.0, 36.0)
    # a task that waits has no phase, although it ran before
    assert (b.phase, b.share_done) == ("", 0.25)
    (shown,) = progress.slots
    assert (shown.device, shown.state, shown.task) == ("gpu 0", "busy", "a")
    # a task past its expected end is expected to end now
    late = view_queue(store, now=500.0, replanner=replanner)
    assert (late.tasks[0].expected_end, late.end_seconds) == (500.0, 500.0)
