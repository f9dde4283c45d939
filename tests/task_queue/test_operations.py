"""Adding to a queue, removing from it, and working it off."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem, RunStateError
from cohort.runs.lock import RunLock
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import enqueue, remove_from_queue, work_off
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import find_queue, open_queue, queue_holder
from tests.task_queue.fake_pool import FakePool


def queued(*names: str) -> list[QueuedTask]:
    return [QueuedTask(name=n, source=f"/{n}.yaml", task={}, digests={}, priority=0, added_at="") for n in names]


def refuse_large(task: QueuedTask) -> tuple[TaskOption, ...]:
    if task.name.startswith("large"):
        raise InputError(Problem(where=task.name, found="80 GiB", allowed="16 GiB", hint="Choose a smaller model."))
    return (TaskOption(num_gpus=1, seconds=5.0),)


def test_all_tasks_are_added_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    with pytest.raises(InputError) as caught:
        enqueue(queued("a", "large-1", "large-2"), folder, expect=refuse_large)
    assert [str(problem.where) for problem in caught.value.problems] == ["large-1", "large-2"]
    assert not find_queue(folder)
    enqueue(queued("a"), folder, expect=refuse_large)
    with open_queue(folder) as store:
        assert [(task.name, task.expected_seconds) for task in store.tasks()] == [("a", 5.0)]


def test_only_open_tasks_are_removed_and_every_wrong_name_is_listed(tmp_path: Path) -> None:
    enqueue(queued("a", "b", "c"), tmp_path, expect=refuse_large)
    with open_queue(tmp_path) as store:
        store.update("b", state=TaskState.DONE)
    with pytest.raises(InputError) as caught:
        remove_from_queue(["a", "b", "d"], tmp_path)
    assert [problem.found for problem in caught.value.problems] == ["a task that is done", "no task of that name"]
    assert caught.value.problems[0].allowed == "one of a, c"
    remove_from_queue(["a"], tmp_path)
    with RunLock(tmp_path / ".queue.lock"):
        assert queue_holder(tmp_path)
        remove_from_queue(["c"], tmp_path)
    with open_queue(tmp_path) as store:
        states = {task.name: (task.state, task.is_withdrawn) for task in store.tasks()}
    # while the queue is worked off its dispatcher removes the task, when the task's worker has stopped
    assert states["a"] == (TaskState.REMOVED, True)
    assert states["c"] == (TaskState.QUEUED, True)
    assert queue_holder(tmp_path) is None


def test_a_queue_is_worked_off_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])
    enqueue(queued("a"), tmp_path, expect=refuse_large)
    clock = ManualClock()
    pool = FakePool(clock=clock, num_slots=1, seconds={"a": 5.0})
    with RunLock(tmp_path / ".queue.lock"), pytest.raises(RunStateError):
        work_off(tmp_path, pool, expect=refuse_large, clock=clock)
    (task,) = work_off(tmp_path, pool, expect=refuse_large, clock=clock)
    assert task.state is TaskState.DONE
    assert pool.is_closed


def test_what_is_no_queue_says_how_to_begin_one(tmp_path: Path) -> None:
    for folder, found in ((tmp_path, "no queue.db in it"), (tmp_path / "missing", "nothing")):
        with pytest.raises(InputError, match="start a queue with") as caught:
            open_queue(folder)
        assert caught.value.problems[0].found == found
