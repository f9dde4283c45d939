"""Tasks that share a worker's executor, on pretended workers: who joins, leaves and fails, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.engine.train.open_run import RunOptions
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.records import TaskState
from tests.task_queue.dispatcher_scene import Scene, all_done

# what the solver would plan is tested elsewhere
QUICKLY: dict[str, Any] = {"room_seconds": 1.0, "policy": ListPolicy.FIRST_COME}


@pytest.fixture(autouse=True)
def no_check_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])


def scene(folder: Path, **seconds: float) -> Scene:
    found = Scene(folder, seconds, num_slots=1, free_share=0.5)
    for name in seconds:
        found.add(name)
        found.keys[name] = "one base"
    return found


def last_end(found: Scene) -> float:
    return max(stretch.end_seconds or 0.0 for stretch in found.store.stretches())


def test_a_task_joins_where_there_is_room_and_both_are_shown(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    seen: list[Any] = []
    found.at(20, lambda: seen.append(found.progress))
    assert all_done(found.run(**QUICKLY))
    # pretended workers train two tasks as fast as one: 62 seconds one after the other
    assert last_end(found) < 40
    assert found.has_decided("share", "trains in the passes of a, which have room")
    views = {view.name: view for view in seen[0].tasks}
    assert (views["a"].shares_with, views["b"].shares_with) == (("b",), ("a",))
    assert views["a"].device == views["b"].device == "slot 0"
    assert seen[0].slots[0].task == "a, b"
    assert [stretch.outcome for stretch in found.store.stretches()] == ["done", "done"]
    assert "shared with b" in write_queue_page(tmp_path).read_text()


def test_sharing_can_be_switched_off(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    assert all_done(found.run(**QUICKLY, options=RunOptions(share_gpu=False)))
    assert last_end(found) > 60
    assert not found.has_decided("share", "")


def test_room_that_no_task_takes_makes_no_plan(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    found.keys["b"] = "another base"
    assert all_done(found.run(**QUICKLY))
    plans = [decision for decision in found.store.decisions() if decision.kind == "plan"]
    # for the two arrivals, and the end of the first
    assert len(plans) <= 3
    assert last_end(found) > 60


def test_one_that_is_removed_leaves_and_the_other_trains_on(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    found.at(15, lambda: found.withdraw("a"))
    assert found.run(**QUICKLY) == {"a": TaskState.REMOVED, "b": TaskState.DONE}
    outcomes = {stretch.task: stretch.outcome for stretch in found.store.stretches()}
    assert outcomes == {"a": "stopped", "b": "done"}
    assert found.order() == ["a", "b"]


def test_an_urgent_task_takes_the_gpu_of_all_that_share_it(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    found.pool.seconds = {**found.pool.seconds, "urgent": 5.0}
    found.pool.done["urgent"] = 0.0
    found.at(15, lambda: found.add("urgent", priority=2))
    assert all_done(found.run(**QUICKLY))
    assert found.order()[:3] == ["a", "b", "urgent"]
    stopped = [stretch.task for stretch in found.store.stretches() if stretch.outcome == "stopped"]
    assert sorted(stopped) == ["a", "b"]


def test_a_worker_that_dies_costs_each_a_try_and_they_go_on_apart(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    found.at(20, lambda: found.pool.kill(0))
    assert all_done(found.run(**QUICKLY))
    assert found.order()[:2] == ["a", "b"]
    cut = [stretch.task for stretch in found.store.stretches() if stretch.outcome == "its worker died"]
    assert sorted(cut) == ["a", "b"]
    # one of them may have killed it: after that none is trained next to the other
    after = [stretch for stretch in found.store.stretches() if stretch.start_seconds > 20]
    assert len(after) == 2
    assert (after[0].end_seconds or 0.0) <= after[1].start_seconds


def test_a_task_without_a_place_next_to_others_waits_for_a_gpu_of_its_own(tmp_path: Path) -> None:
    found = scene(tmp_path, a=20.0, b=20.0)
    found.pool.unfitting.add("b")
    assert all_done(found.run(**QUICKLY))
    assert found.has_decided("share", "trains by itself: other target_modules")
    assert last_end(found) > 40
    assert sum("trains by itself" in note for note in found.notes) == 1


def test_an_error_of_one_leaves_the_other(tmp_path: Path) -> None:
    found = scene(tmp_path, a=30.0, b=30.0)
    found.pool.failures["b"] = ["input: no such file"]
    assert found.run(**QUICKLY) == {"a": TaskState.DONE, "b": TaskState.FAILED}
    assert found.order() == ["a", "b"]
