"""Warns as a run begins where its disk may be too small for its checkpoints, and not after an hour of training."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.units import counted, format_bytes
from cohort.memory.size_inputs import state_row_bytes
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["disk_warning", "most_bytes"]


def most_bytes(adapters: Sequence[AdapterSpec], *, layout: AdapterLayout, optimizer: Optimizer) -> int:
    """Return the bytes of a checkpoint in which every trial trains, and of the best weights of all of them.

    A run has less on its disk where trials have left before its first checkpoint, and more for as long as it replaces
    such a checkpoint.
    """
    best_bytes = layout.width * torch.float32.itemsize
    return sum(adapter.num_rows for adapter in adapters) * (state_row_bytes(layout, optimizer=optimizer) + best_bytes)


def disk_warning(
    folder: Path, adapters: Sequence[AdapterSpec], *, layout: AdapterLayout, optimizer: Optimizer
) -> str | None:
    """Return what to say where ``folder`` has less room than the checkpoints of trials may take; None where it has it.

    Args:
        folder: The run directory; states that a run which goes on has in it count as room.
        adapters: Those of its trials.
    """
    wanted = most_bytes(adapters, layout=layout, optimizer=optimizer)
    try:
        free = shutil.disk_usage(folder).free
        used = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    except OSError:
        # a file system that does not tell; a full disk has an error of its own
        return None
    if free + used >= wanted:
        return None
    what, more = f"checkpoints of {counted(len(adapters), 'trial')}", format_bytes(wanted - used)
    return (
        f"{what} may need up to {more} more in {folder}, and {format_bytes(free)} are free. If the "
        f"disk fills, the run stops with exit code 2: free space, and `cohort resume {folder}` trains again what came "
        "after its last checkpoint. Smaller ranks or fewer trials need less"
    )
