"""What is begun only when it can be: a changed task is held, and a run directory in use is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import Problem
from cohort.runs.directory import RunDirectory
from cohort.task_queue.records import TaskState
from tests.task_queue.dispatcher_scene import Scene, all_done


def test_a_task_whose_file_changed_is_held_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Problem(where="b.yaml: training.max_steps", found="7", allowed="6", hint="Restore it as it was.")
    found = {"b": [change]}
    monkeypatch.setattr(
        "cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: found.get(task.name, [])
    )
    scene = Scene(tmp_path, {"a": 5.0, "b": 5.0, "c": 5.0}, num_slots=1)
    for name in "abc":
        scene.add(name)
    states = scene.run()
    assert states == {"a": TaskState.DONE, "b": TaskState.HELD, "c": TaskState.DONE}
    assert "b" not in scene.order()
    assert "training.max_steps: found 7; allowed: 6" in next(t.reason for t in scene.store.tasks() if t.name == "b")

    # once it is as it was, it runs
    found.clear()
    scene.store.update("b", state=TaskState.QUEUED)
    scene.pool.workers = {}
    assert all_done(scene.run())


def test_a_run_directory_that_another_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])
    scene = Scene(tmp_path, {"a": 5.0, "b": 5.0}, num_slots=1)
    for name in "ab":
        scene.add(name)
    (tmp_path / "a").mkdir()
    is_held = [True]
    lock = type("Lock", (), {"holder": lambda _: "process 7" if is_held[0] else None})
    monkeypatch.setattr(RunDirectory, "lock", lambda _: lock())
    scene.at(8, lambda: is_held.__setitem__(0, False))
    assert all_done(scene.run())
    assert scene.has_decided("note", "waits until process 7 has left its run directory")
    assert sum("waits until" in decision.text for decision in scene.store.decisions()) == 1
