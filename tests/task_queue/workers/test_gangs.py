"""Tasks on several slots, on pretended workers: placed together, ended together, and no device in two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.records import TaskState
from tests.task_queue.dispatcher_scene import Scene, all_done


@pytest.fixture(autouse=True)
def no_check_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])


def slots_of(scene: Scene, task: str) -> list[tuple[int, ...]]:
    """The slots of each time that a task ran."""
    runs: dict[float, list[int]] = {}
    for stretch in scene.store.stretches():
        if stretch.task == task:
            runs.setdefault(stretch.start_seconds, []).append(stretch.slot_id)
    return [tuple(slots) for slots in runs.values()]


@pytest.mark.parametrize("policy", [None, ListPolicy.FIRST_COME])
def test_a_gang_has_its_slots_together_and_gives_them_back(tmp_path: Path, policy: ListPolicy | None) -> None:
    scene = Scene(tmp_path, {"one": 10.0, "wide": 40.0, "other": 10.0, "last": 5.0}, num_slots=2)
    for name in scene.pool.seconds:
        scene.add(name, degrees=(2,) if name == "wide" else (1,))
    assert all_done(scene.run(policy=policy))
    assert slots_of(scene, "wide") == [(0, 1)]
    stretches = {name: [s for s in scene.store.stretches() if s.task == name] for name in scene.pool.seconds}
    (wide, beside) = stretches["wide"]
    assert (wide.start_seconds, wide.end_seconds) == (beside.start_seconds, beside.end_seconds)
    # forty seconds of work on two slots
    assert (wide.end_seconds or 0) - wide.start_seconds == pytest.approx(20, abs=1)
    others = [s for name in ("one", "other", "last") for s in stretches[name]]
    assert all((s.end_seconds or 0) <= wide.start_seconds or s.start_seconds >= (wide.end_seconds or 0) for s in others)
    assert {len(slots) for name in ("one", "other", "last") for slots in slots_of(scene, name)} == {1}
    assert scene.progress is not None
    (view,) = (task for task in scene.progress.tasks if task.name == "wide")
    # seconds, and not once for each slot
    assert view.held_seconds == pytest.approx(20, abs=1)
    page = write_queue_page(tmp_path).read_text()
    assert "slot 0, slot 1: done" in page


def test_the_plan_chooses_how_many_slots_a_task_gets(tmp_path: Path) -> None:
    """One task on two slots: both at first, and the task that comes meanwhile waits for neither longer than planned."""
    scene = Scene(tmp_path, {"flexible": 40.0, "late": 4.0}, num_slots=2)
    scene.add("flexible", degrees=(1, 2))
    scene.at(5, lambda: scene.add("late", degrees=(1, 2)))
    assert all_done(scene.run())
    assert slots_of(scene, "flexible") == [(0, 1)]
    assert slots_of(scene, "late") == [(0, 1)]
    # the same worker: between two gangs on the same slots nothing is started
    assert not scene.has_decided("worker", "died")


def test_views_show_every_slot_of_a_gang(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 40.0}, num_slots=3)
    scene.add("wide", degrees=(2,))
    seen: list[tuple[list[tuple[str, str]], str]] = []

    def look() -> None:
        assert scene.progress is not None
        slots = [(slot.state, slot.task) for slot in scene.progress.slots]
        seen.append((slots, scene.progress.tasks[0].device))

    scene.at(12, look)
    assert all_done(scene.run())
    ((slots, device),) = seen
    assert slots == [("busy", "wide"), ("busy", "wide"), ("idle", "")]
    assert device == "slot 0, slot 1"
    assert scene.has_decided("start", "begins on slot 0, slot 1")


def test_one_death_ends_the_gang_and_is_one_attempt(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 40.0}, num_slots=2)
    scene.add("wide", degrees=(2,))
    scene.at(12, lambda: scene.pool.kill(0))
    assert all_done(scene.run())
    assert slots_of(scene, "wide") == [(0, 1), (0, 1)]
    assert scene.has_decided("worker", "the worker on slot 0, slot 1 died: killed by SIGKILL")
    (failure,) = [decision for decision in scene.store.decisions() if decision.kind == "fail"]
    assert "it will continue from its last checkpoint" in failure.text


def test_an_urgent_task_takes_a_slot_of_a_gang_and_the_gang_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 60.0, "urgent": 5.0}, num_slots=2)
    scene.add("wide", degrees=(2,))
    scene.at(10, lambda: scene.add("urgent", priority=2))
    assert all_done(scene.run())
    assert scene.has_decided("preempt", "gives way to urgent")
    assert slots_of(scene, "wide") == [(0, 1), (0, 1)]
    assert slots_of(scene, "urgent") in ([(0,)], [(1,)])
    # nothing was done twice
    held = {(s.start_seconds, s.end_seconds or 0) for s in scene.store.stretches() if s.task == "wide"}
    assert sum(end - start for start, end in held) == pytest.approx(30, abs=1.5)


def test_a_gang_that_no_slots_are_left_for_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 60.0, "one": 10.0}, num_slots=2, unstartable={1})
    scene.add("wide", degrees=(2,))
    scene.add("one")
    assert scene.run() == {"wide": TaskState.FAILED, "one": TaskState.DONE}
    (reason,) = (task.reason for task in scene.store.tasks() if task.name == "wide")
    assert reason.startswith("it needs 2 slots of one machine, and there is 1;")


def test_a_gang_that_is_too_large_from_the_start_is_given_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 60.0, "one": 10.0}, num_slots=2)
    scene.add("wide", degrees=(4,))
    scene.add("one")
    assert scene.run() == {"wide": TaskState.FAILED, "one": TaskState.DONE}
    (reason,) = (task.reason for task in scene.store.tasks() if task.name == "wide")
    assert "4 slots of one machine, and there are 2" in reason


def test_a_gang_waits_for_a_machine_that_may_join(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 20.0, "one": 10.0}, num_slots=1, can_grow=True)
    scene.add("wide", degrees=(2,))
    scene.add("one")

    def join() -> None:
        for slot_id in (5, 6):
            scene.pool.gain(slot_id)

    scene.at(20, join)
    assert all_done(scene.run())
    assert slots_of(scene, "wide") == [(5, 6)]


def test_a_lost_machine_takes_the_gang_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"wide": 40.0}, num_slots=2, can_grow=True)
    scene.add("wide", degrees=(2,))

    def join() -> None:
        for slot_id in (5, 6):
            scene.pool.gain(slot_id)

    scene.at(10, join)
    scene.at(15, lambda: scene.pool.lose((0, 1)))
    assert all_done(scene.run())
    assert slots_of(scene, "wide") == [(0, 1), (5, 6)]
    # a lost machine is no fault of the task
    assert not [decision for decision in scene.store.decisions() if decision.kind == "fail"]
