"""The dispatcher on pretended workers: what runs where and when, to the moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.process.interrupts import StopRequest
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.records import QueuedTask, TaskState
from tests.task_queue.dispatcher_scene import Scene, all_done
from tests.task_queue.fake_pool import FakePool


@pytest.fixture(autouse=True)
def no_check_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])


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
    assert scene.has_decided("reestimate", "left")
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


def test_asked_to_stop_every_task_saves_its_state_and_another_dispatcher_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"a": 20.0, "b": 20.0, "c": 20.0})
    for name in "abc":
        scene.add(name)
    scene.at(8, scene.stop.set)
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert set(scene.states().values()) == {TaskState.QUEUED}
    assert {stretch.outcome for stretch in scene.store.stretches()} == {"stopped"}

    scene.stop = StopRequest()
    scene.pool.workers, scene.pool.started = {}, []
    assert all_done(scene.run())


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
    assert scene.has_decided("reestimate", "about 20s left instead of 23s")
    assert scene.has_decided("plan", "task a will end at another time")
    assert not any("will end" in note for note in scene.notes), scene.notes


def test_a_flood_of_one_tenant_waits_behind_the_first_task_of_another(tmp_path: Path) -> None:
    names = [f"flood{number}" for number in range(8)]
    scene = Scene(tmp_path, dict.fromkeys([*names, "late"], 10.0), num_slots=1)
    for name in names:
        scene.add(name, tenant="one")
    scene.at(5, lambda: scene.add("late", tenant="other"))
    assert all_done(scene.run())
    assert scene.order()[:3] == ["flood0", "late", "flood1"]


def test_the_next_dispatcher_knows_what_tenants_were_charged(tmp_path: Path) -> None:
    scene = Scene(tmp_path, dict.fromkeys(("a0", "a1", "b0"), 10.0), num_slots=1)
    scene.add("a0", tenant="a")
    assert all_done(scene.run())
    charges = scene.store.facts().tenant_charges
    assert charges is not None
    assert charges["running"] == {}
    assert charges["tags"]["a"] == pytest.approx(10, abs=1.5)
    scene.add("a1", tenant="a")
    scene.add("b0", tenant="b")
    scene.pool = FakePool(clock=scene.clock, num_slots=1, seconds=scene.pool.seconds)
    assert all_done(scene.run())
    assert scene.order() == ["b0", "a1"]
