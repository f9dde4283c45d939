"""A queue whose tasks train on the base model of this process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.engine.resident.sweeps import Sweeps
from cohort.engine.tune import tune
from cohort.runs.lock import RunLock
from cohort.task_queue.operations import enqueue, remove_from_queue
from cohort.task_queue.records import TaskState
from cohort.task_queue.resident_queue import ResidentQueue, require_queue
from cohort.task_queue.store import LOCK_NAME, open_queue
from cohort.task_queue.submission import submission_of
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import outcome_of, tiny_task, write_inputs
from tests.engine.resident.resident_scene import base_of
from tests.support.paced_sweeps import paced_sweeps

WHERE = Place(option="command line --queue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def states(directory: Path) -> dict[str, TaskState]:
    with open_queue(directory) as store:
        return {task.name: task.state for task in store.tasks()}


def wait_until(directory: Path, wanted: dict[str, TaskState]) -> None:
    for _ in range(1200):
        if states(directory) == wanted:
            return
        threading.Event().wait(0.05)
    raise AssertionError(states(directory))


def test_tasks_of_a_queue_join_the_base_and_a_wrong_one_fails_alone(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder), tmp_path / "alone")
    write_tiny_model(folder / "other", num_layers=1)
    require_queue(tmp_path / "queue", where=WHERE)
    done: list[str] = []
    queue = ResidentQueue(
        tmp_path / "queue", Sweeps(base_of(folder / "model")), on_done=lambda name, _: done.append(name)
    )
    clock = SystemClock()
    for number in range(4):
        task = tiny_task(folder, training={"seed": number})
        enqueue([submission_of(f"task-{number}", task, clock=clock, tenant=f"tenant-{number % 2}")], tmp_path / "queue")
    elsewhere = tiny_task(folder).model_copy(update={"model_name_or_path": str(folder / "other")})
    enqueue([submission_of("elsewhere", elsewhere, clock=clock)], tmp_path / "queue")
    queue.start()
    try:
        finished = {f"task-{number}": TaskState.DONE for number in range(4)}
        wait_until(tmp_path / "queue", finished | {"elsewhere": TaskState.FAILED})
    finally:
        queue.close()
    assert sorted(done) == sorted(finished)
    assert sorted(queue.done()) == sorted((name, tmp_path / "queue" / name) for name in finished)
    with open_queue(tmp_path / "queue") as store:
        failed = store.task("elsewhere")
    assert failed is not None
    assert "which is not the base model in memory" in failed.reason
    tune(tiny_task(folder, training={"seed": 3}), tmp_path / "three")
    found, expected = outcome_of(tmp_path / "queue" / "task-3"), outcome_of(tmp_path / "three")
    assert found["adapters"] == expected["adapters"]


def test_a_queue_that_closes_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    directory = tmp_path / "queue"
    require_queue(directory, where=WHERE)
    task = tiny_task(folder, training={"max_steps": 200})
    enqueue([submission_of(name, task, clock=SystemClock()) for name in ("stays", "goes")], directory)
    queue = ResidentQueue(directory, Sweeps(base_of(folder / "model")))
    # the one must not be done before the other is gone and the queue closes
    with paced_sweeps():
        queue.start()
        wait_until(directory, {"stays": TaskState.RUNNING, "goes": TaskState.RUNNING})
        remove_from_queue(["goes"], directory)
        wait_until(directory, {"stays": TaskState.RUNNING, "goes": TaskState.REMOVED})
        queue.close()
    assert states(directory)["stays"] is TaskState.QUEUED
    again = ResidentQueue(directory, Sweeps(base_of(folder / "model")))
    again.start()
    try:
        wait_until(directory, {"stays": TaskState.DONE, "goes": TaskState.REMOVED})
    finally:
        again.close()
    tune(task, tmp_path / "alone")
    assert outcome_of(directory / "stays")["adapters"] == outcome_of(tmp_path / "alone")["adapters"]


def test_what_cannot_be_worked_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="which is a file"):
        require_queue(tmp_path / "file", where=WHERE)
    (tmp_path / "held").mkdir()
    with RunLock(tmp_path / "held" / LOCK_NAME), pytest.raises(InputError, match="works off"):
        require_queue(tmp_path / "held", where=WHERE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").touch()
    with pytest.raises(InputError, match="the directory of one run"):
        require_queue(tmp_path / "run", where=WHERE)
