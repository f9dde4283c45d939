"""Workers die, hang and get lost, tasks fail, the dispatcher is killed: nothing that was done is lost."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from cohort.core.errors import RunStateError
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.records import RunStretch, TaskState
from cohort.task_queue.settings import Limits
from tests.task_queue.dispatcher_scene import Scene, all_done


@pytest.fixture(autouse=True)
def no_check_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])


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
