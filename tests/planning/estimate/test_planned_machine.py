"""A task on hardware that is not here: its device, and the key under which its costs are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.planning.estimate.planned_machine import cost_key, planned_machine
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.scheduling.cost.hardware import KNOWN_GPUS, Hardware
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = Hardware(name="a CPU", memory_bytes=8e9, flops_per_second=4e10, bytes_per_second=1e10, is_gpu=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def test_a_gpu_that_is_not_here_computes_in_bfloat16(folder: Path, inputs: TaskInputs) -> None:
    there = planned_machine(tiny_task(folder), KNOWN_GPUS["H200"], config=inputs.config, memory_bytes=5, num_gpus=3)
    assert (there.device.type, there.precision, there.memory_bytes, there.num_gpus) == ("cuda", "bfloat16", 5, 3)
    here = planned_machine(tiny_task(folder), CPU, config=inputs.config, memory_bytes=5)
    assert (here.device.type, here.dtype, here.num_gpus) == ("cpu", "float32", 1)


def test_costs_are_kept_by_what_they_hold_for(folder: Path, inputs: TaskInputs) -> None:
    task, gpu = tiny_task(folder), KNOWN_GPUS["H200"]
    assert cost_key(task, inputs, CPU) != cost_key(task, inputs, gpu)
    assert cost_key(task, inputs, gpu).precision == "bfloat16"
    longer = tiny_task(folder, training={"max_steps": 99})
    assert cost_key(task, inputs, CPU) == cost_key(longer, read_inputs(longer), CPU)
    # what a run would decide there
    wide = replace(inputs, config=replace(inputs.config, hidden_size=4096, intermediate_size=14336))
    assert cost_key(task, wide, gpu).precision == "bfloat16, exact numerics"
    assert cost_key(task, wide, CPU).precision == "float32"
    quantised = tiny_task(folder, quantization="fp8")
    assert cost_key(quantised, inputs, gpu).precision == "bfloat16, fp8 weights"
