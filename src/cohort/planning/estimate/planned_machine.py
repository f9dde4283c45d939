"""The device of a task on hardware that need not be here, and the key of its measured costs."""

from __future__ import annotations

import torch

from cohort.machine.machine import Machine
from cohort.machine.measurements import CostKey
from cohort.models.config import DecoderConfig
from cohort.prepare.base_model.numerics import choose_numerics
from cohort.prepare.inputs import TaskInputs
from cohort.scheduling.cost.hardware import Hardware
from cohort.tasks.task_file import TaskFile

__all__ = ["cost_key", "planned_machine"]


def planned_machine(
    task: TaskFile, hardware: Hardware, *, config: DecoderConfig, memory_bytes: int, num_gpus: int = 1
) -> Machine:
    """Return the device of a task on hardware that need not be here; ``config`` is the base model's."""
    choice = choose_numerics(task, config=config, gpu=hardware.name, num_gpus=num_gpus, has_product=hardware.is_gpu)
    return Machine(
        device=torch.device("cuda" if hardware.is_gpu else "cpu"),
        device_name=hardware.name,
        dtype="bfloat16" if hardware.is_gpu else "float32",
        threads=1,
        memory_bytes=memory_bytes,
        # as many processes, on a CPU as well
        num_gpus=num_gpus,
        quantization=task.quantization,
        numerics=choice.numerics,
        numerics_reason=choice.reason,
    )


def cost_key(task: TaskFile, inputs: TaskInputs, hardware: Hardware) -> CostKey:
    """Return the key of steps with every layer resident."""
    machine = planned_machine(task, hardware, config=inputs.config, memory_bytes=0)
    return inputs.cost_key(hardware=hardware.name, precision=machine.precision)
