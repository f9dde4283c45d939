"""The queue's database: what is written is read, by this version and of the one before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cohort.core.errors import RunStateError
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.store import QueueStore


def queued(name: str, **fields: object) -> QueuedTask:
    plain = {
        "source": f"/{name}.yaml",
        "task": {"seed": 1},
        "digests": {"/rows": "ab"},
        "priority": 2,
        "added_at": "now",
    }
    return QueuedTask(name=name, **{**plain, **fields})  # type: ignore[arg-type]


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    full = queued("a", state=TaskState.HELD, reason="why", is_withdrawn=True, expected_seconds=3.5, attempts=2,
                  planned_slot=1, planned_start=4.0, planned_end=9.0, tenant="ants", weight=2.5)  # fmt: skip
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([full, queued("b")])
    with QueueStore.open(tmp_path / "queue.db") as store:
        assert store.tasks() == (full, queued("b"))
        assert store.task("missing") is None
        assert store.has_open_tasks()
        changed = store.update("b", state=TaskState.DONE, attempts=1)
        assert changed == queued("b", state=TaskState.DONE, attempts=1) == store.task("b")
        assert not store.has_open_tasks()


def test_a_name_is_taken_until_its_task_is_removed_and_all_are_added_or_none(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([queued("a")])
        with pytest.raises(RunStateError, match="already has a task a"):
            store.add([queued("b"), queued("a")])
        assert [task.name for task in store.tasks()] == ["a"]
        store.update("a", state=TaskState.REMOVED)
        store.add([queued("a", priority=7)])
        assert [task.priority for task in store.tasks()] == [7]


def test_what_is_forgotten_is_gone_with_its_history_and_open_tasks_stay(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([queued("done", state=TaskState.DONE), queued("running", state=TaskState.RUNNING)])
        for name in ("done", "running", ""):
            store.record(TaskDecision(seconds=1.0, kind="start", task=name, text="x"))
        for name in ("done", "running"):
            store.begin_stretch(RunStretch(task=name, slot_id=0, device="cpu", start_seconds=1.0))
        store.forget(["done", "running", "unknown"])
        assert [task.name for task in store.tasks()] == ["running"]
        assert [decision.task for decision in store.decisions()] == ["running", ""]
        assert [stretch.task for stretch in store.stretches()] == ["running"]
        # its name is free again
        store.add([queued("done")])


def test_stretches_end_one_by_one_or_all_and_never_before_they_began(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        for task, start in (("a", 1.0), ("b", 2.0), ("c", 8.0)):
            store.begin_stretch(RunStretch(task=task, slot_id=0, device="cpu", start_seconds=start))
        store.end_stretches(task="a", seconds=5.0, outcome="done")
        store.end_stretches(task=None, seconds=6.0, outcome="the dispatcher died")
        ended = [(found.task, found.end_seconds, found.outcome) for found in store.stretches()]
    assert ended == [("a", 5.0, "done"), ("b", 6.0, "the dispatcher died"), ("c", 8.0, "the dispatcher died")]


def test_the_last_plan_is_found_among_the_decisions(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        assert store.last_plan() == (None, 0)
        plans = [TaskDecision(seconds=s, kind="plan", task="", text="", numbers={"n": s}) for s in (1.0, 2.0)]
        note = TaskDecision(seconds=3.0, kind="note", task="a", text="hello")
        for decision in (*plans, note):
            store.record(decision)
        assert store.last_plan() == (plans[1], 2)
        assert store.decisions() == (*plans, note)


def test_what_is_no_queue_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="there is no queue here"):
        QueueStore.open(tmp_path / "queue.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(RunStateError, match="not a queue of this version"):
        QueueStore.open(tmp_path / "other.db")
    (tmp_path / "text.db").write_text("no database at all, but long enough to be read as the header of one" * 9)
    with pytest.raises(RunStateError):
        QueueStore.open(tmp_path / "text.db")


def test_a_queue_of_the_version_before_keeps_its_tasks_and_learns_of_tenants(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([queued("a", state=TaskState.DONE), queued("b")])
    with closing(sqlite3.connect(tmp_path / "queue.db")) as before:
        for name in ("tenant", "weight"):
            before.execute(f"ALTER TABLE tasks DROP COLUMN {name}")
        before.execute("PRAGMA user_version = 1")
        before.commit()
    for _ in range(2):
        with QueueStore.open(tmp_path / "queue.db") as store:
            assert store.tasks() == (queued("a", state=TaskState.DONE), queued("b"))
    with QueueStore.open(tmp_path / "queue.db") as store:
        store.update("b", tenant="ants", weight=2.0)
        assert store.task("b") == queued("b", tenant="ants", weight=2.0)
