"""What a task takes of a device, and what is refused where that is too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.planning.estimate.task_memory import TaskMemory
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.prepare.proposals import TrialProposals
from cohort.scheduling.cost.hardware import KNOWN_GPUS, Hardware
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def memory_of(task: TaskFile, inputs: TaskInputs, hardware: Hardware) -> TaskMemory:
    return TaskMemory(task, inputs, hardware, TrialProposals(task, inputs.data.train))


def test_what_a_device_holds_is_less_than_it_has_and_more_than_the_weights(folder: Path, inputs: TaskInputs) -> None:
    found = memory_of(tiny_task(folder, num_gpus="auto"), inputs, KNOWN_GPUS["H200"])
    assert found.weight_bytes < found.memory_bytes(1, found.sizes(1)) < found.device_bytes
    assert found.tight_on == set()


def test_hardware_without_room_is_refused_by_what_is_too_large(folder: Path, inputs: TaskInputs) -> None:
    task = tiny_task(folder, num_gpus="auto")
    tiny_gpu = Hardware(name="a GPU", memory_bytes=1e6, flops_per_second=1e12, bytes_per_second=1e11)
    with pytest.raises(InputError, match="whose weights take"):
        memory_of(task, inputs, tiny_gpu).sizes(1)
    limited = tiny_task(folder, num_gpus="auto", memory={"limit": "1 GiB"})
    with pytest.raises(InputError, match="and room for a pass"):
        memory_of(limited, inputs, KNOWN_GPUS["H200"]).sizes(1)
