"""When a queue was last worked on: by what the dispatcher wrote, and by what the runs it left wrote since."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cohort.task_queue.last_seen import last_seen_seconds
from cohort.task_queue.records import QueuedTask, QueueFacts, TaskState

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "seconds"), [(TaskState.RUNNING, 27.0), (TaskState.DONE, 16.0)], ids=["left running", "done before"]
)
def test_a_killed_dispatcher_was_there_as_long_as_its_workers_wrote(
    tmp_path: Path, state: TaskState, seconds: float
) -> None:
    task = QueuedTask(name="a", source="", task={}, digests={}, priority=0, added_at="", state=state)
    (tmp_path / "a").mkdir()
    for name, written in (("run.db", 20), ("run.db-wal", 27)):
        (tmp_path / "a" / name).write_text("rows")
        at = (BEGAN + timedelta(seconds=written)).timestamp()
        os.utime(tmp_path / "a" / name, (at, at))
    facts = QueueFacts(began_at=BEGAN, last_dispatcher_seconds=16.0)
    assert last_seen_seconds(facts, [task], directory=tmp_path) == seconds


def test_the_empty_log_of_a_reader_tells_nothing(tmp_path: Path) -> None:
    task = QueuedTask(name="a", source="", task={}, digests={}, priority=0, added_at="", state=TaskState.RUNNING)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.db-wal").touch()
    facts = QueueFacts(began_at=BEGAN, last_dispatcher_seconds=16.0)
    assert last_seen_seconds(facts, [task], directory=tmp_path) == 16.0


def test_before_the_first_dispatcher_it_was_never_seen(tmp_path: Path) -> None:
    assert last_seen_seconds(QueueFacts(), [], directory=tmp_path) is None
