"""What a task is expected to take on a slot, and when it is told that it fits none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.machine.cluster.local import cpu_slots
from cohort.machine.local_slots import hardware_of_slots
from cohort.scheduling.cost.hardware import known_gpu
from cohort.scheduling.cost.shared_time import shared_time
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.records import QueuedTask
from cohort.task_queue.submission import read_submissions
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, tiny_data, tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("expectation"))


def queued(folder: Path, runs: Path, **sections: object) -> QueuedTask:
    (folder / "task.yaml").write_text(json.dumps(tiny_data(**sections)))
    (task,), _ = read_submissions([folder / "task.yaml"], known=(), directory=runs, clock=SystemClock())
    return task


def test_longer_tasks_are_expected_to_take_longer(folder: Path, tmp_path: Path) -> None:
    expect = ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(2, num_threads=1)))
    (short,), (long,) = (expect(queued(folder, tmp_path, training={"max_steps": steps})) for steps in (8, 800))
    assert 0 < short.seconds < long.seconds


def test_a_task_may_have_several_slots_where_the_queue_allows_it(folder: Path, tmp_path: Path) -> None:
    task, hardware = queued(folder, tmp_path), hardware_of_slots(cpu_slots(2, num_threads=1))
    expect = ExpectedTime(tmp_path, hardware, slots_of_node=3, most_gpus=4)
    one, two = expect(task)
    assert (one.num_gpus, two.num_gpus) == (1, 2)
    assert two.seconds < one.seconds
    # what was predicted when it was added stands, as long as it is about the same numbers of slots
    known = replace(task, options=(replace(one, seconds=9.0), replace(two, seconds=7.0)))
    assert expect(known) == known.options
    (alone,) = ExpectedTime(tmp_path, hardware)(known)
    assert alone == one


def test_a_task_that_has_begun_says_itself_what_is_left(folder: Path, tmp_path: Path) -> None:
    task = queued(folder, tmp_path)
    tune(tiny_task(folder), tmp_path / task.name)
    expect = ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(1, num_threads=1)))
    (option,) = expect(task)
    assert option.seconds == pytest.approx(0.0, abs=0.01)
    # a run that is resumed on two slots takes a share of the time
    several = ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(2, num_threads=1)), slots_of_node=2, most_gpus=2)
    assert [option.num_gpus for option in several(task)] == [1, 2]


def test_a_task_that_fits_no_slot_is_refused(folder: Path, tmp_path: Path) -> None:
    hardware = hardware_of_slots(cpu_slots(1, num_threads=1))
    small = replace(hardware, memory_bytes=20_000.0)
    with pytest.raises(InputError, match="whose weights take"):
        ExpectedTime(tmp_path, small)(queued(folder, tmp_path))
    with pytest.raises(InputError, match="the GPUs, or CPU workers, of one machine"):
        ExpectedTime(tmp_path, hardware, slots_of_node=2)(queued(folder, tmp_path, num_gpus=3))


def test_on_cpu_workers_the_number_of_gpus_is_that_of_processes(folder: Path, tmp_path: Path) -> None:
    hardware = hardware_of_slots(cpu_slots(2, num_threads=1))
    for num_gpus in (1, 2):
        (option,) = ExpectedTime(tmp_path, hardware, slots_of_node=2)(queued(folder, tmp_path, num_gpus=num_gpus))
        assert option.num_gpus == num_gpus


def test_what_is_left_of_a_task_that_could_share_a_gpu(folder: Path, tmp_path: Path) -> None:
    gpu = known_gpu("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    task = queued(folder, tmp_path, num_gpus="auto")
    work = ExpectedTime(tmp_path, gpu).work(task)
    assert work is not None
    assert [own.num_steps for own in work.works.values()] == [8] * 6
    assert work.start_seconds > 0
    alone = shared_time([work]).seconds
    # a task of other ranks and rows can share, one with another memory section cannot
    other = ExpectedTime(tmp_path, gpu).work(queued(folder, tmp_path, num_gpus="auto", search={"space": {"r": [8]}}))
    assert other is not None
    assert other.key == work.key
    # numerics as they are decided there, not as they are written
    keys = {name: queued(folder, tmp_path, num_gpus="auto", numerics=name) for name in ("auto", "fast", "exact")}
    found_keys = {name: known.key for name, q in keys.items() if (known := ExpectedTime(tmp_path, gpu).work(q))}
    assert found_keys["auto"] == found_keys["fast"] == work.key != found_keys["exact"]
    limited = queued(folder, tmp_path, num_gpus="auto", memory={"margin": 0.2})
    found = ExpectedTime(tmp_path, gpu).work(limited)
    assert found is not None
    assert found.key != work.key
    # a run tells which trials have ended, and how far the others are
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder), tmp_path / task.name, watcher=Interrupting(20), clock=TickingClock())
    left = ExpectedTime(tmp_path, gpu).work(task)
    assert left is not None
    assert 0 < sum(own.num_steps for own in left.works.values()) <= 28
    assert shared_time([left]).seconds < alone
    # a CPU has no passes that are too small, and answers of a reference model are computed before training
    assert ExpectedTime(tmp_path, hardware_of_slots(cpu_slots(1, num_threads=1))).work(task) is None
