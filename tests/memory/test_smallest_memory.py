"""Whether a task fits, and the smallest memory in which it would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.machine.machine import Machine
from cohort.memory.budget import choose_sizes
from cohort.memory.size_inputs import SizeInputs
from cohort.memory.smallest_memory import (
    SmallestMemory,
    estimated_inputs,
    limit_problem,
    require_room_for_an_adapter,
    sizes_within,
    smallest_memory,
    weight_bytes,
)
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.prepare.proposals import TrialProposals
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = Machine(device=torch.device("cpu"), device_name="a CPU", dtype="float32", threads=1, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("limit"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def limited(folder: Path, limit: int) -> TaskFile:
    """Return a task with a limit below what task files may ask for: its model is tiny."""
    task = tiny_task(folder)
    return task.model_copy(update={"memory": task.memory.model_copy(update={"limit": limit})})


def size_inputs(task: TaskFile, inputs: TaskInputs) -> SizeInputs:
    specs = TrialProposals(task, inputs.data.train).largest()
    return estimated_inputs(inputs.demand(task, CPU, specs=specs))


def test_the_smallest_memory_is_enough_and_a_little_less_is_not(folder: Path, inputs: TaskInputs) -> None:
    task = tiny_task(folder, memory={"limit": "1 GiB"})
    needs, base = size_inputs(task, inputs), weight_bytes(inputs.config, CPU)
    found = smallest_memory(task, needs, base_bytes=base, there_bytes=1 << 30)
    assert found is not None
    choose_sizes(needs, free_bytes=found.num_bytes - base)
    with pytest.raises(InputError):
        choose_sizes(needs, free_bytes=int(0.99 * (found.num_bytes - base)))


def test_a_task_that_does_not_fit_is_told_its_key_and_the_limit_that_would_do(folder: Path, inputs: TaskInputs) -> None:
    task = limited(folder, 400 << 10)
    needs = size_inputs(task, inputs)
    with pytest.raises(InputError) as caught:
        sizes_within(task, needs, free_bytes=1 << 10, base_bytes=300 << 10, there_bytes=1 << 30)
    (problem,) = caught.value.problems
    assert problem.hint.startswith("Raise memory.limit to ")
    assert "by an estimate from above" in problem.hint
    fits = sizes_within(task, needs, free_bytes=1 << 28, base_bytes=300 << 10, there_bytes=1 << 30)
    assert fits.executor.num_slots == len(needs.specs)


def test_where_no_memory_would_do_there_is_no_hint(folder: Path, inputs: TaskInputs) -> None:
    task = tiny_task(folder, memory={"limit": "1 GiB"})
    needs = size_inputs(task, inputs)
    assert needs.needs is not None
    endless = replace(needs, needs=replace(needs.needs, pass_bytes=lambda _: 1e30, recomputed_bytes=None))
    assert smallest_memory(task, endless, base_bytes=0, there_bytes=1 << 30) is None


def test_a_limit_must_hold_the_base_model_and_an_adapter(folder: Path, inputs: TaskInputs) -> None:
    base = weight_bytes(inputs.config, CPU)
    free, tight = tiny_task(folder), limited(folder, base + 100)
    assert limit_problem(free, base_bytes=base) is None
    assert limit_problem(tight, base_bytes=base) is None
    too_low = limit_problem(tight, base_bytes=base + 100)
    assert too_low is not None
    assert "memory.limit" in str(too_low.where)
    with_pass = limit_problem(tight, base_bytes=base, pass_bytes=1 << 20)
    assert with_pass is not None
    assert with_pass.allowed.endswith("and room for a pass")
    require_room_for_an_adapter(free, size_inputs(free, inputs), base_bytes=base)
    with pytest.raises(InputError, match="rank 4"):
        require_room_for_an_adapter(tight, size_inputs(tight, inputs), base_bytes=base)


@pytest.mark.parametrize(
    ("limit", "there", "raised"),
    [(1 << 20, 1 << 30, "2.01 MiB or more"), (None, 1 << 30, None), (1 << 20, 1 << 20, None)],
)
def test_a_limit_is_raised_only_as_far_as_the_machine_goes(limit: int | None, there: int, raised: str | None) -> None:
    enough = SmallestMemory(num_bytes=(2 << 20) + 1, limit_bytes=limit, there_bytes=there)
    assert (enough.raised is None) if raised is None else str(enough.raised).startswith(raised)
