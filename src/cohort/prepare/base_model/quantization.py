"""What to know about the format of the frozen weights on this machine, before anything is trained."""

from __future__ import annotations

from cohort.machine.machine import Machine
from cohort.models.weight_formats import format_named

__all__ = ["quantization_note"]


def quantization_note(machine: Machine) -> str | None:
    """Return one line about quantised weights on a CPU, where they save no time; None elsewhere."""
    kept = format_named(machine.quantization)
    if machine.device.type != "cpu" or kept.quantisation is None:
        return None
    on_gpu = "" if kept.gpu_needs is None else f"; a GPU needs {kept.gpu_needs} for it"
    return (
        f"quantization: {kept.name} on a CPU computes in float32 what the format defines, more slowly than none{on_gpu}"
    )
