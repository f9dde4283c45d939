"""The status of a queue and of a task that has not started, with and without a process that works it off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.runs.lock import RunLock
from cohort.task_queue.status import (
    queue_status_json,
    read_queue_status,
    read_unstarted_task,
    unstarted_task_json,
)
from tests.task_queue.small_queue import write_small_queue


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    return write_small_queue(tmp_path)


def test_without_a_dispatcher_nothing_runs_and_no_end_is_expected(queue: Path) -> None:
    status = read_queue_status(queue)
    assert status.holder == ""
    assert [task.state.value for task in status.progress.tasks] == ["queued", "queued", "queued", "queued", "held"]
    assert {(task.device, task.expected_end) for task in status.progress.tasks} == {("", None)}
    assert status.progress.end_seconds is None
    assert not status.are_all_done


def test_with_a_dispatcher_the_plan_holds(queue: Path) -> None:
    with RunLock(queue / ".queue.lock"):
        told = json.loads(json.dumps(queue_status_json(read_queue_status(queue))))
    a, b = told["tasks"][:2]
    assert told["holder"].startswith("process")
    assert told["end_seconds"] == 700.0
    assert (a["state"], a["device"], a["run_directory"]) == ("running", "gpu 0", str(queue / "a"))
    assert (b["device"], b["metric"], b["best_value"]) == (None, None, None)


def test_a_task_waits_for_those_before_it_in_its_slot(queue: Path) -> None:
    alone = read_unstarted_task(queue / "c")
    assert alone is not None
    assert (alone.waits_for, alone.ahead, alone.begins_in_seconds) == ("a process that runs the queue", (), None)
    with RunLock(queue / ".queue.lock"):
        found = {name: read_unstarted_task(queue / name) for name in "acde"}
    a, c, d, e = found.values()
    assert a is not None and c is not None and d is not None and e is not None  # noqa: PT018
    assert c.waits_for == "the end of a (runs on gpu 0), b (waits)"
    told = unstarted_task_json(c)
    assert told["ahead"] == ["a", "b"]
    assert 390 < told["begins_in_seconds"] <= 400
    assert 590 < told["ends_in_seconds"] <= 600
    assert d.waits_for == "the next plan"
    # neither a task that begins now nor one that is held waits for anything
    assert (a.waits_for, e.waits_for) == ("", "")


def test_no_queue_no_task(queue: Path, tmp_path: Path) -> None:
    assert read_unstarted_task(queue / "missing") is None
    assert read_unstarted_task(tmp_path / "elsewhere" / "a") is None
    with pytest.raises(InputError, match="cohort run"):
        read_queue_status(tmp_path / "elsewhere")
