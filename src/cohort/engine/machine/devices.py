"""What is known of the device that a task runs on here, in the words that costs are filed under."""

from __future__ import annotations

from dataclasses import replace

import torch

from cohort.engine.machine.machine import Machine
from cohort.scheduling.cost.hardware import Hardware, known_gpu

__all__ = ["hardware_of"]

# float32 products of one core of a server, as packed training of small models reaches them
CPU_FLOPS_PER_THREAD = 4e10
CPU_BYTES_PER_SECOND = 1e10


def hardware_of(machine: Machine) -> Hardware:
    """Return what is known of ``machine``'s device."""
    if machine.device.type == "cuda":
        total = float(torch.cuda.get_device_properties(machine.device).total_memory)
        known = known_gpu(machine.device_name)
        if known is not None:
            return replace(known, memory_bytes=total)
        # a GPU that nobody has described: a middling one, until a step was measured
        return Hardware(
            name=machine.device_name,
            memory_bytes=total,
            flops_per_second=1e14,
            bytes_per_second=8e11,
            link_bytes_per_second=3.2e10,
        )
    return Hardware(
        name=f"{machine.device_name}, {machine.threads} thread{'' if machine.threads == 1 else 's'}",
        memory_bytes=machine.memory_bytes,
        flops_per_second=CPU_FLOPS_PER_THREAD * machine.threads,
        bytes_per_second=CPU_BYTES_PER_SECOND,
        is_gpu=False,
    )
