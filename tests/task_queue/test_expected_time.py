"""What a task is expected to take on a slot, and when it is told that it fits none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.cluster.local import cpu_slots
from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.machine.local_slots import hardware_of_slots
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.submission import read_submissions
from tests.end_to_end.tiny_tasks import tiny_data, tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("expectation"))


def queued(folder: Path, runs: Path, **sections: object) -> QueuedTask:
    (folder / "task.yaml").write_text(json.dumps(tiny_data(**sections)))
    (task,), _ = read_submissions([folder / "task.yaml"], known=(), directory=runs, clock=SystemClock())
    return task


def test_longer_tasks_are_expected_to_take_longer(folder: Path, tmp_path: Path) -> None:
    expect = ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(2, num_threads=1)))
    short, long = (expect(queued(folder, tmp_path, training={"max_steps": steps})) for steps in (8, 800))
    assert 0 < short < long


def test_a_task_that_has_begun_says_itself_what_is_left(folder: Path, tmp_path: Path) -> None:
    task = queued(folder, tmp_path)
    tune(tiny_task(folder), tmp_path / task.name)
    expect = ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(1, num_threads=1)))
    assert expect(task) == 0.0


def test_a_task_that_fits_no_slot_is_refused(folder: Path, tmp_path: Path) -> None:
    hardware = hardware_of_slots(cpu_slots(1, num_threads=1))
    small = replace(hardware, memory_bytes=20_000.0)
    with pytest.raises(InputError, match="whose weights take"):
        ExpectedTime(tmp_path, small)(queued(folder, tmp_path))
    with pytest.raises(InputError, match="but the workers are on the CPU"):
        ExpectedTime(tmp_path, hardware)(queued(folder, tmp_path, num_gpus=1))
