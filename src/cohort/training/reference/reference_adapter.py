"""The adapter that trials are held to, in place of the base model alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.models.checkpoint_layout import factor_shapes
from cohort.models.config import DecoderConfig

__all__ = ["ReferenceAdapter", "read_reference_adapter"]


@dataclass(frozen=True, kw_only=True)
class ReferenceAdapter:
    """An adapter that only reads. ``weights_rD`` are its rank rows."""

    layout: AdapterLayout
    spec: AdapterSpec
    weights_rD: Tensor


def read_reference_adapter(directory: Path, config: DecoderConfig, *, sha256: str | None = None) -> ReferenceAdapter:
    """Read an adapter directory for a model of ``config``.

    Args:
        directory: An adapter as PEFT stores it.
        config: The model's.
        sha256: What :func:`adapter_digest` gave of it before; None where nothing was.

    Raises:
        InputError: a file is missing, damaged or no longer the same, or the adapter does not fit the model.
    """
    adapter, shapes = read_adapter(directory), factor_shapes(config)
    if sha256 is not None and (found := adapter_digest(directory)) != sha256:
        raise InputError(
            Problem(
                where=Place(key=("objective", "reference_adapter"), text=str(directory)),
                found=f"another adapter than when the task began (SHA-256 {found[:12]})",
                allowed=f"the adapter that it began with: SHA-256 {sha256[:12]}",
                hint="Restore its files as they were, and give each adapter a directory of its own.",
            )
        )
    layout = AdapterLayout({name: shapes[name] for name in adapter.modules if name in shapes})
    spec = replace(adapter.spec_in(layout), lora_dropout=0.0)
    return ReferenceAdapter(layout=layout, spec=spec, weights_rD=rank_rows_from_peft(layout, adapter))
