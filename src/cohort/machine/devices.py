"""The hardware of the device that a task runs on here, under the name that measured costs are kept by."""

from __future__ import annotations

from dataclasses import replace

import torch

from cohort.core.units import counted
from cohort.machine.machine import Machine
from cohort.scheduling.cost.hardware import Hardware, known_gpu

__all__ = ["hardware_of"]

# float32 products of one core of a server, as packed training of small models reaches them
CPU_FLOPS_PER_THREAD = 4e10
CPU_BYTES_PER_SECOND = 1e10


def hardware_of(machine: Machine) -> Hardware:
    if machine.device.type == "cuda":
        total = float(torch.cuda.get_device_properties(machine.device).total_memory)
        known = known_gpu(machine.device_name)
        if known is not None:
            return replace(known, memory_bytes=total)
        # an unknown GPU counts as a middling one until a step was measured on it
        return Hardware(
            name=machine.device_name,
            memory_bytes=total,
            flops_per_second=1e14,
            bytes_per_second=8e11,
            link_bytes_per_second=3.2e10,
        )
    # the thread count is part of the name: costs measured with one thread do not hold for eight
    return Hardware(
        name=f"{machine.device_name}, {counted(machine.threads, 'thread')}",
        memory_bytes=machine.memory_bytes,
        flops_per_second=CPU_FLOPS_PER_THREAD * machine.threads,
        bytes_per_second=CPU_BYTES_PER_SECOND,
        is_gpu=False,
    )
