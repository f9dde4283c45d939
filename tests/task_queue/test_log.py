"""The queue's clock goes on over a stop, and its log keeps every decision."""

from __future__ import annotations

from pathlib import Path

from cohort.core.clock import ManualClock
from cohort.scheduling.placement.cluster_events import TaskArrived
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.task_queue.log import QueueLog
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.store import QueueStore


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, progress: QueueProgress) -> None:
        raise AssertionError("a log shows lines only")

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_the_clock_counts_from_the_first_dispatcher_on(tmp_path: Path) -> None:
    clock, lines = ManualClock(), Lines()
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        first = QueueLog(store, clock=clock, watcher=lines, directory=tmp_path)
        assert first.last_dispatcher_seconds is None
        clock.advance(10)
        first.note_presence()
        clock.advance(2)
        first.note_presence()
        assert first.now == 12
        clock.advance(100)
        second = QueueLog(store, clock=clock, watcher=lines, directory=tmp_path)
        # presence is written every few seconds only
        assert (second.now, second.last_dispatcher_seconds) == (112, 10)
        second.note_presence(at_once=True)
        assert QueueLog(store, clock=clock, watcher=lines, directory=tmp_path).last_dispatcher_seconds == 112


def test_every_decision_is_kept_and_only_some_are_shown(tmp_path: Path) -> None:
    lines = Lines()
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        log = QueueLog(store, clock=ManualClock(), watcher=lines, directory=tmp_path)
        log.decide("start", task="a", text="begins on cpu", numbers={"slot": 0})
        log.decide("reestimate", task="a", text="a little later", is_shown=False)
        kept = store.decisions()
    assert [(found.kind, found.task, dict(found.numbers)) for found in kept] == [
        ("start", "a", {"slot": 0}),
        ("reestimate", "a", {}),
    ]
    assert lines.lines == ["[0s] a: begins on cpu"]


def test_the_first_plan_of_a_task_stays_its_first(tmp_path: Path) -> None:
    clock, lines = ManualClock(), Lines()
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([QueuedTask(name="a", source="", task={}, digests={}, priority=0, added_at="")])
        log = QueueLog(store, clock=clock, watcher=lines, directory=tmp_path)
        for seconds in (30.0, 60.0):
            option = TaskOption(num_gpus=1, seconds=seconds)
            event = TaskArrived(at_seconds=0.0, request=TaskRequest(task_id="a", options=(option,)))
            log.planned(Replanner(Cluster(nodes={"local": (0,)}), policy=None).take([event], saved_shares={}))
            clock.advance(5)
        (task,), (plan, count) = store.tasks(), store.last_plan()
    assert (task.planned_slot, task.planned_start, task.planned_end) == (0, 0.0, 30.0)
    assert count == 2
    assert plan is not None
    (placement,) = plan.numbers["placements"]
    assert placement == {"task": "a", "slots": [0], "start_seconds": 5.0, "end_seconds": 65.0}
    assert "all tasks end in 30s (no other order or placement ends sooner)" in lines.lines[0]
