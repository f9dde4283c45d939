"""The dispatcher on pretended workers and a clock that is set: every kind of event, to the moment."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem, RunStateError
from cohort.scheduling.placement.list_policies import ListPolicy
from cohort.task_queue.dispatcher import Dispatcher
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import QueuedTask, RunStretch, TaskState
from cohort.task_queue.settings import DispatcherSettings, Limits
from cohort.task_queue.store import QueueStore
from tests.task_queue.fake_pool import FakePool


class Scene:
    """A queue with pretended workers; ``at`` does something at a moment of the clock."""

    def __init__(self, folder: Path, seconds: Mapping[str, float], *, num_slots: int = 2, **pool: Any) -> None:
        self.clock = ManualClock()
        self.pool = FakePool(clock=self.clock, num_slots=num_slots, seconds=seconds, **pool)
        self.directory = folder
        self.store = QueueStore.open(folder / "queue.db", create=True)
        self.stop = threading.Event()
        self.notes: list[str] = []
        self.progress: QueueProgress | None = None
        self.actions: list[tuple[float, Callable[[], None]]] = []

    def add(self, name: str, *, priority: int = 0, expected: float | None = None) -> None:
        source = self.directory / f"{name}.yaml"
        source.write_text("{}")
        self.store.add(
            [
                QueuedTask(
                    name=name,
                    source=str(source),
                    task={},
                    digests={},
                    priority=priority,
                    added_at="",
                    expected_seconds=self.pool.seconds[name] if expected is None else expected,
                )
            ]
        )

    def withdraw(self, name: str) -> None:
        self.store.update(name, is_withdrawn=True)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        self.actions.append((seconds, action))

    def update(self, progress: QueueProgress) -> None:
        self.progress = progress

    def note(self, text: str) -> None:
        self.notes.append(text)

    def run(self, **settings: Any) -> dict[str, TaskState]:
        plain_wait = self.pool.wait

        def wait(timeout_seconds: float) -> Any:
            due = [action for seconds, action in self.actions if seconds <= self.clock.monotonic()]
            self.actions = [entry for entry in self.actions if entry[0] > self.clock.monotonic()]
            for action in due:
                action()
            assert self.clock.monotonic() < 1000, self.notes
            return plain_wait(timeout_seconds)

        self.pool.wait = wait  # type: ignore[method-assign]
        dispatcher = Dispatcher(
            self.store,
            self.pool,
            directory=self.directory,
            expect=self.expect,
            watcher=self,
            settings=DispatcherSettings(**settings),
            clock=self.clock,
            stop=self.stop,
        )
        try:
            dispatcher.run()
        finally:
            self.pool.wait = plain_wait  # type: ignore[method-assign]
        return self.states()

    def expect(self, task: QueuedTask) -> float:
        if task.name == "unfit":
            raise InputError(Problem(where="unfit", found="80 GiB", allowed="16 GiB", hint="Choose a smaller model."))
        return max(self.pool.seconds[task.name] - self.pool.done[task.name], 1e-3)

    def states(self) -> dict[str, TaskState]:
        return {task.name: task.state for task in self.store.tasks()}

    def order(self) -> list[str]:
        return [task for _, _, task in self.pool.started]

    def has_decided(self, kind: str, text: str) -> bool:
        return any(decision.kind == kind and text in decision.text for decision in self.store.decisions())


@pytest.fixture(autouse=True)
def no_check_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.dispatcher.find_changes", lambda task, **_: [])


def all_done(states: Mapping[str, TaskState]) -> bool:
    return set(states.values()) == {TaskState.DONE}


FIVE = {"a": 20.0, "b": 20.0, "c": 20.0, "d": 30.0, "e": 30.0}


def test_the_plan_ends_before_every_list_policy(tmp_path: Path) -> None:
    """Two slots, 20 + 20 + 20 and 30 + 30: the longest first gives 70 seconds."""
    ends = {}
    for policy in (None, ListPolicy.FIRST_COME, ListPolicy.SHORTEST_FIRST, ListPolicy.LONGEST_FIRST):
        folder = tmp_path / str(policy)
        folder.mkdir()
        scene = Scene(folder, FIVE)
        for name in FIVE:
            scene.add(name)
        assert all_done(scene.run(policy=policy))
        ends[policy] = max(stretch.end_seconds or 0 for stretch in scene.store.stretches())
    best = ends.pop(None)
    assert best == pytest.approx(61, abs=1.5)
    assert all(end > best + 5 for end in ends.values()), ends


def test_early_exits_move_what_waits_up_and_are_recorded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 10.0, "b": 40.0, "c": 30.0})
    for name, expected in (("a", 50.0), ("b", 40.0), ("c", 30.0)):
        scene.add(name, expected=expected)
    assert all_done(scene.run())
    assert scene.has_decided("reestimate", "will end in")
    assert scene.has_decided("plan", "task a will end at another time")
    assert scene.progress is not None
    views = {task.name: task for task in scene.progress.tasks}
    page = write_queue_page(tmp_path).read_text()
    assert "<svg" in page
    assert "until the last end" in page
    # the first plan had it wait for b
    assert views["c"].planned_start == pytest.approx(40, abs=1.5)
    assert views["c"].actual_start == pytest.approx(11, abs=1.5)


def test_an_urgent_task_takes_a_slot_and_who_gave_way_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"low": 30.0, "mid": 30.0, "urgent": 5.0})
    scene.add("low")
    scene.add("mid", priority=1)
    scene.at(10, lambda: scene.add("urgent", priority=2))
    assert all_done(scene.run())
    assert scene.has_decided("preempt", "gives way to urgent")
    assert scene.order() == ["mid", "low", "urgent", "low"] or scene.order() == ["low", "mid", "urgent", "low"]
    stretches = [stretch for stretch in scene.store.stretches() if stretch.task == "low"]
    assert [stretch.outcome for stretch in stretches] == ["stopped", "done"]
    # nothing was done twice
    assert sum((s.end_seconds or 0) - s.start_seconds for s in stretches) == pytest.approx(30, abs=1.5)


def test_a_dead_worker_is_replaced_and_its_task_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0})
    scene.add("a")
    scene.add("b")
    scene.at(8, lambda: scene.pool.kill(0))
    assert all_done(scene.run())
    assert scene.has_decided("worker", "the worker on slot 0 died: killed by SIGKILL")
    assert scene.has_decided("fail", "it will continue from its last checkpoint")


@pytest.mark.parametrize("way", ["silent", "still"])
def test_a_worker_that_hangs_is_killed_and_replaced(tmp_path: Path, way: str) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0})
    scene.add("a")
    scene.add("b")
    scene.at(8, lambda: setattr(scene.pool.workers[1], f"is_{way}", True))
    assert all_done(scene.run(limits=Limits(silent_seconds=5.0, still_seconds=30.0)))
    said = "silent for 5 s" if way == "silent" else "its task has made no progress for 1000000000 s (training)"
    assert scene.has_decided("worker", f"the worker on slot 1 died: {said}, killed by SIGKILL")


def test_a_task_that_fails_again_and_again_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    failures = {"bad": ["out of memory"] * 9, "wrong": ["input: no such column"], "shaky": ["lost the disk"] * 2}
    seconds = {"bad": 5.0, "wrong": 5.0, "shaky": 5.0, "good": 5.0}
    scene = Scene(tmp_path, seconds, failures=failures)
    for name in seconds:
        scene.add(name)
    states = scene.run()
    assert states == {
        "bad": TaskState.FAILED,
        "wrong": TaskState.FAILED,
        "shaky": TaskState.DONE,
        "good": TaskState.DONE,
    }
    reasons = {task.name: task.reason for task in scene.store.tasks()}
    assert reasons["bad"] == "out of memory (3 attempts)"
    assert reasons["wrong"] == "no such column"
    assert scene.order().count("wrong") == 1


def test_tasks_come_and_go_while_the_queue_is_worked_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0, "late": 5.0, "unwanted": 5.0, "unfit": 1.0})
    for name in ("a", "b", "unwanted"):
        scene.add(name)
    scene.at(5, lambda: scene.add("late"))
    scene.at(5, lambda: scene.withdraw("unwanted"))
    scene.at(8, lambda: scene.withdraw("a"))
    scene.at(
        9, lambda: scene.store.add([QueuedTask(name="unfit", source="", task={}, digests={}, priority=0, added_at="")])
    )
    states = scene.run()
    assert states == {
        "a": TaskState.REMOVED,
        "b": TaskState.DONE,
        "late": TaskState.DONE,
        "unwanted": TaskState.REMOVED,
        "unfit": TaskState.FAILED,
    }
    assert "unwanted" not in scene.order()
    assert [stretch.outcome for stretch in scene.store.stretches() if stretch.task == "a"] == ["stopped"]
    assert "80 GiB" in next(task.reason for task in scene.store.tasks() if task.name == "unfit")
    # the slot of the removed task did not stay empty
    assert next(start for start, _, task in scene.pool.started if task == "late") < 12


def test_a_task_that_is_put_back_the_moment_it_failed_is_begun_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 5.0, "b": 20.0}, failures={"a": ["input: no such file"]})
    for name in ("a", "b"):
        scene.add(name)

    def note(text: str) -> None:
        if "given up" in text:
            scene.store.update("a", state=TaskState.QUEUED, reason="", attempts=0)

    scene.note = note  # type: ignore[method-assign]
    assert all_done(scene.run())
    assert scene.order().count("a") == 2


def test_a_task_whose_file_changed_is_held_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Problem(where="b.yaml: training.max_steps", found="7", allowed="6", hint="Restore it as it was.")
    found = {"b": [change]}
    monkeypatch.setattr("cohort.task_queue.dispatcher.find_changes", lambda task, **_: found.get(task.name, []))
    scene = Scene(tmp_path, {"a": 5.0, "b": 5.0, "c": 5.0}, num_slots=1)
    for name in "abc":
        scene.add(name)
    states = scene.run()
    assert states == {"a": TaskState.DONE, "b": TaskState.HELD, "c": TaskState.DONE}
    assert "b" not in scene.order()
    assert "training.max_steps: found 7; allowed: 6" in next(t.reason for t in scene.store.tasks() if t.name == "b")

    # once it is as it was, whoever puts it back has it run
    found.clear()
    scene.store.update("b", state=TaskState.QUEUED)
    scene.pool.workers = {}
    assert all_done(scene.run())


def test_a_slot_whose_workers_never_begin_is_given_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 5.0, "b": 5.0}, unstartable={1})
    scene.add("a")
    scene.add("b")
    assert all_done(scene.run())
    assert scene.has_decided("worker", "1 slot lost: 3 workers in a row died before they could work: no such device")

    folder = tmp_path / "none"
    folder.mkdir()
    scene = Scene(folder, {"a": 5.0}, num_slots=1, unstartable={0})
    scene.add("a")
    with pytest.raises(RunStateError, match="no worker slot is left"):
        scene.run()
    assert scene.states() == {"a": TaskState.QUEUED}
    assert scene.pool.is_closed


def test_lost_nodes_give_their_tasks_back_and_new_ones_are_used(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0}, can_grow=True)
    scene.add("a")
    scene.add("b")
    scene.at(6, lambda: scene.pool.lose([0, 1]))
    scene.at(20, lambda: scene.pool.gain(2))
    assert all_done(scene.run())
    assert scene.has_decided("worker", "2 slots lost: node lost")
    assert {slot for start, slot, _ in scene.pool.started if start > 10} == {2}
    # what was done before the loss was saved
    assert max(stretch.end_seconds or 0 for stretch in scene.store.stretches()) < 56


def test_a_task_that_is_added_as_the_last_slot_is_lost_waits_for_another(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 10.0, "late": 5.0}, num_slots=1, can_grow=True)
    scene.add("a")

    def lose_and_add() -> None:
        scene.pool.lose([0])
        scene.add("late")

    scene.at(4, lose_and_add)
    scene.at(8, lambda: scene.pool.gain(5))
    assert all_done(scene.run(look_seconds=0.0))
    assert {slot for _, slot, _ in scene.pool.started} == {0, 5}


def test_asked_to_stop_every_task_saves_its_state_and_another_dispatcher_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0, "c": 20.0})
    for name in "abc":
        scene.add(name)
    scene.at(8, scene.stop.set)
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert set(scene.states().values()) == {TaskState.QUEUED}
    assert {stretch.outcome for stretch in scene.store.stretches()} == {"stopped"}

    scene.stop.clear()
    scene.pool.workers, scene.pool.started = {}, []
    assert all_done(scene.run())


def test_a_new_dispatcher_takes_over_what_a_killed_one_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0, "c": 20.0})
    for name in "abc":
        scene.add(name)

    class KilledError(Exception):
        pass

    def die() -> None:
        raise KilledError

    scene.at(8, die)
    with pytest.raises(KilledError):
        scene.run()
    # as a kill leaves it: nothing was put in order
    scene.store.update("a", state=TaskState.RUNNING)
    scene.store.begin_stretch(RunStretch(task="a", slot_id=0, device="cpu 0", start_seconds=5.0))
    scene.pool.workers, scene.pool.started = {}, []
    scene.clock.advance(timedelta(minutes=1).total_seconds())
    assert all_done(scene.run())
    assert sorted(scene.order()) == ["a", "b", "c"]
    # what ran, ran while there was a dispatcher; the minute without one is a pause, of which no task knows
    (left,) = (stretch for stretch in scene.store.stretches() if stretch.outcome == "the dispatcher died")
    assert left.end_seconds == pytest.approx(8, abs=1)
    page = write_queue_page(tmp_path).read_text()
    assert "pause of 1m 00s" in page
    ends = re.findall(r"cpu 0: the dispatcher died|actual: (\d+)s to (\d+)s", page)
    assert max(int(end) for _, end in ends if end) <= 50


def test_open_for_more_it_waits_until_it_is_stopped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 5.0, "late": 5.0})
    scene.add("a")
    scene.at(50, lambda: scene.add("late"))
    scene.at(100, scene.stop.set)
    with pytest.raises(KeyboardInterrupt):
        scene.run(keeps_open=True)
    assert all_done(scene.states())


def test_an_end_that_moves_a_little_is_recorded_and_not_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0, "c": 5.0})
    for name, expected in (("a", 24.0), ("b", 20.0), ("c", 5.0)):
        scene.add(name, expected=expected)
    assert all_done(scene.run())
    assert scene.has_decided("reestimate", "will end in 20s, not in 23s")
    assert scene.has_decided("plan", "task a will end at another time")
    assert not any("will end" in note for note in scene.notes), scene.notes


def test_a_task_that_comes_back_begins_with_a_clean_record(tmp_path: Path) -> None:
    """How far it was before it was taken off says nothing of whether it gets on now."""
    scene = Scene(tmp_path, {"a": 20.0}, num_slots=1)
    scene.add("a")

    def take_back() -> None:
        scene.pool.done["a"] = 0.0
        scene.store.update("a", state=TaskState.QUEUED, reason="", is_withdrawn=False, attempts=0)

    scene.at(9, lambda: scene.pool.kill(0))
    scene.at(12, lambda: scene.withdraw("a"))
    scene.at(16, take_back)
    for seconds in (20, 24, 28):
        scene.at(seconds, lambda: scene.pool.kill(0))
    assert all_done(_run_open(scene))


def _run_open(scene: Scene) -> dict[str, TaskState]:
    """Keep the queue open until its tasks are done: it is empty in between."""

    def close_when_done() -> None:
        if all_done(scene.states()):
            scene.stop.set()

    for seconds in range(32, 120):
        scene.at(seconds, close_when_done)
    with pytest.raises(KeyboardInterrupt):
        scene.run(keeps_open=True)
    return scene.states()
