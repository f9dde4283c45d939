"""A queue of five tasks that a dispatcher has planned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.store import QueueStore

__all__ = ["write_small_queue"]


def write_small_queue(folder: Path) -> Path:
    """``a`` runs in slot 0, ``b`` and ``c`` wait for it by the plan, ``d`` is in no plan, ``e`` is held."""
    placements = [
        {"task": name, "slots": [slot], "start_seconds": start, "end_seconds": end}
        for name, slot, start, end in (
            ("a", 0, 10.0, 400.0), ("b", 0, 400.0, 500.0), ("c", 0, 500.0, 700.0), ("other", 1, 0.0, 900.0)
        )
    ]  # fmt: skip
    with QueueStore.open(folder / "queue.db", create=True) as store:
        store.add([QueuedTask(name=n, source="", task={}, digests={}, priority=0, added_at="") for n in "abcde"])
        store.update("a", state=TaskState.RUNNING)
        store.update("e", state=TaskState.HELD, reason="changed")
        store.begin_stretch(RunStretch(task="a", slot_id=0, device="gpu 0", start_seconds=10.0))
        store.record(TaskDecision(seconds=0.0, kind="plan", task="", text="", numbers={"placements": placements}))
        store.set_facts(began_at=datetime.now(UTC) - timedelta(seconds=100))
    return folder
