"""Adapter directories of a run: what PEFT and vLLM load, with a model card and the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_format import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    adapter_config,
    serialised_weights,
    shortest_target_modules,
)
from cohort.adapters.spec import AdapterSpec
from cohort.core.durable_files import directory_written_beside, write_bytes, write_text

__all__ = ["write_adapter_directory", "write_adapter_files"]


def write_adapter_files(
    folder: Path,
    weights_rD: Tensor,
    *,
    layout: AdapterLayout,
    spec: AdapterSpec,
    base_model: str,
    linears: Sequence[str],
    card: str,
) -> None:
    """Write adapter and model card into an existing folder, each file whole or not at all.

    Args:
        folder: Where.
        weights_rD: The adapter's rank rows.
        layout: Adapted linears.
        spec: Hyperparameters.
        base_model: Hub id or path that the adapter names as its base.
        linears: All adaptable linears of the base, to say the adapted ones shortly.
        card: README.md.

    Raises:
        StorageFullError: the disk is full.
    """
    config = adapter_config(
        spec, base_model=base_model, target_modules=shortest_target_modules(layout.linears, linears=linears)
    )
    write_bytes(folder / WEIGHTS_FILE, serialised_weights(layout, weights_rD))
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_text(folder / "README.md", card)


def write_adapter_directory(
    path: Path,
    weights_rD: Tensor,
    *,
    layout: AdapterLayout,
    spec: AdapterSpec,
    base_model: str,
    linears: Sequence[str],
    card: str,
    tokenizer: Any,
) -> None:
    """Write a whole adapter directory with the tokenizer's files, in place of what was at ``path``.

    Raises:
        StorageFullError: the disk is full; what was at ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with directory_written_beside(path) as folder:
        write_adapter_files(
            folder, weights_rD, layout=layout, spec=spec, base_model=base_model, linears=linears, card=card
        )
        tokenizer.save_pretrained(folder)
