"""Writes adapter directories that PEFT and vLLM load, with a model card and the tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cohort.adapters.expert_names import parameters_among
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.expert_format import shortest_target_parameters
from cohort.adapters.peft_files.peft_config import adapter_config, shortest_target_modules
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE, weight_parts
from cohort.adapters.spec import AdapterSpec
from cohort.core.durable_files import (
    atomic_directory,
    atomic_file,
    write_bytes,
    write_text,
)

__all__ = [
    "AdapterContent",
    "write_adapter_directory",
    "write_adapter_files",
    "write_adapter_weights",
]


@dataclass(frozen=True, kw_only=True)
class AdapterContent:
    """The content of an adapter directory.

    Attributes:
        weights_rD: The adapter's rank rows.
        layout: Adapted linears.
        spec: Hyperparameters.
        base_model: Hub id or path that the adapter names as its base.
        linears: Everything of the base model that a target name could mean, to find short names for the adapted ones.
        parameters: Every stacked parameter of the base model that holds experts.
        card: README.md.
        are_transposed: Whether the base model keeps the weights of its linears as [K, N].
        tokenizer_files: The base model's, written next to the adapter; by path, as
            :func:`~cohort.models.known_tokenizer.tokenizer_files` gives them.
    """

    weights_rD: Tensor
    layout: AdapterLayout
    spec: AdapterSpec
    base_model: str
    linears: Sequence[str]
    card: str
    tokenizer_files: Mapping[Path, bytes]
    are_transposed: bool = False
    parameters: Sequence[str] = ()


def write_adapter_files(
    folder: Path, content: AdapterContent, *, written: Path | None = None, is_flushed: bool = True
) -> None:
    """Write adapter, model card and tokenizer into an existing folder, each file whole or not at all.

    Args:
        written: A folder that holds this adapter's weights already, perhaps ``folder`` itself. They never change, so
            they are linked, or copied where the file system has no links; those of ``content`` are not read.
        is_flushed: As of :func:`~cohort.core.durable_files.atomic_file`, for each file.

    Raises:
        StorageFullError: the disk is full.
    """
    experts = list(parameters_among(content.layout.linears))
    adapted = [path for path in content.layout.targets if path not in experts]
    target_modules = shortest_target_modules(adapted, linears=content.linears)
    config = adapter_config(
        content.spec,
        base_model=content.base_model,
        target_modules=target_modules,
        target_parameters=shortest_target_parameters(experts, parameters=content.parameters),
        fan_in_fan_out=content.are_transposed,
    )
    # the configuration after the weights: a folder that has it counts as an adapter
    if written is None:
        write_adapter_weights(
            folder,
            layout=content.layout,
            spec=content.spec,
            weights_rD=content.weights_rD,
            is_flushed=is_flushed,
        )
    elif written != folder:
        _link_or_copy(written / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    write_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n", is_flushed=is_flushed)
    write_text(folder / "README.md", content.card, is_flushed=is_flushed)
    for path, file in content.tokenizer_files.items():
        write_bytes(folder / path, file, is_flushed=is_flushed)


def write_adapter_weights(
    folder: Path, *, layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor, is_flushed: bool = True
) -> None:
    """Write the weights of an adapter [r, D] into an existing folder, whole or not at all; ``is_flushed`` as above.

    Raises:
        StorageFullError: the disk is full.
    """
    with atomic_file(folder / WEIGHTS_FILE, is_flushed=is_flushed) as partial, partial.open("wb") as stream:
        for part in weight_parts(layout, spec, weights_rD):
            stream.write(part)


def _link_or_copy(file: Path, link: Path) -> None:
    """Give a file a second name, or its content a second file where the file system has no links."""
    try:
        os.link(file, link)
    except OSError:
        with atomic_file(link) as partial:
            shutil.copyfile(file, partial)


def write_adapter_directory(path: Path, content: AdapterContent, *, written: Path | None = None) -> None:
    """Write a whole adapter directory in place of what was at ``path``; ``written`` as in :func:`write_adapter_files`.

    Raises:
        StorageFullError: the disk is full; what was at ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # written next to it and renamed: a reader finds the old adapter or the new one
    with atomic_directory(path) as folder:
        # all of it is flushed once it is there
        write_adapter_files(folder, content, written=written, is_flushed=False)
