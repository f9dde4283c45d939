"""The adapter that trials are held to, in place of the base model alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_format import rank_rows_from_peft, read_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig

__all__ = ["ReferenceAdapter", "read_reference_adapter"]


@dataclass(frozen=True, kw_only=True)
class ReferenceAdapter:
    """An adapter that only reads. ``weights_rD`` are its rank rows."""

    layout: AdapterLayout
    spec: AdapterSpec
    weights_rD: Tensor


def read_reference_adapter(directory: Path, config: DecoderConfig) -> ReferenceAdapter:
    """Read an adapter directory for a model of ``config``.

    Raises:
        InputError: a file is missing or damaged, or the adapter does not fit the model.
    """
    adapter, shapes = read_adapter(directory), linear_shapes(config)
    layout = AdapterLayout({name: shapes[name] for name in adapter.modules if name in shapes})
    return ReferenceAdapter(
        layout=layout, spec=replace(adapter.spec, lora_dropout=0.0), weights_rD=rank_rows_from_peft(layout, adapter)
    )
