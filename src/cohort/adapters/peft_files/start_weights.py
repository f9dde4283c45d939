"""The weights of the adapter that trials begin with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_format import read_adapter
from cohort.adapters.peft_files.peft_names import LORA_A, LORA_B, PREFIX
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = ["start_weights"]


def start_weights(layout: AdapterLayout, start: AdapterStart, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the rank rows [r, D] of the adapter that ``start`` names, on the host.

    Args:
        layout: Of all linears that the adapter has, or of some: a stage of a pipeline holds a part of them.
        start: A plain adapter that has every linear of the layout, in its widths.
        dtype: What a bank keeps weights in; values of float32 files are kept bit for bit in float32.

    Raises:
        InputError: its files are gone, or no longer those that ``start`` was made of.
    """
    adapter = read_adapter(Path(start.directory))
    # after the read: what was changed meanwhile is found
    if (found := adapter_digest(Path(start.directory))) != start.sha256:
        raise InputError(
            Problem(
                where=Place(key=("lora", "adapter_name_or_path"), text=start.directory),
                found=f"another adapter than when the task began (SHA-256 {found[:12]})",
                allowed=f"the adapter that it began with: SHA-256 {start.sha256[:12]}",
                hint="Restore its files as they were, and give each adapter a directory of its own.",
            )
        )
    rows_rD = torch.zeros(start.r, layout.width, dtype=dtype)
    for name, columns in layout.columns.items():
        rows_rD[:, columns.a] = adapter.tensors[f"{PREFIX}{name}{LORA_A}"].to(dtype)
        rows_rD[:, columns.b] = adapter.tensors[f"{PREFIX}{name}{LORA_B}"].T.to(dtype)
    return rows_rD
