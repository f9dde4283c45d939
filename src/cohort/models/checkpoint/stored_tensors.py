"""Where each tensor of a model is stored, or all that is wrong with its files; no weight is read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.models.checkpoint.safetensors_files import StoredTensor, TensorFiles, read_headers
from cohort.models.checkpoint.stored_nf4 import parts_of, tensor_problems
from cohort.models.checkpoint_layout import FusedTensor, checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.config_file import read_config
from cohort.models.source import find_model
from cohort.models.weight_formats import NF4, PLAIN, WeightFormat

__all__ = ["check_checkpoint", "match_layout", "stored_tensors"]

_SAME_MODEL = "Use the config.json and the weights of the same model."


def check_checkpoint(name_or_path: str | Path) -> DecoderConfig:
    """Return the configuration of a model whose files are complete, reading no weights.

    Raises:
        UnsupportedModelError: no causal language model that transformers loads.
        InputError: anything wrong with the files, all problems at once.
    """
    folder = find_model(name_or_path)
    config = read_config(folder)
    if config.bridged is None:
        stored_tensors(folder, config)
    elif problems := read_headers(folder).problems:
        # transformers may keep tensors under other names than the model has; it says what is missing as it loads them
        raise InputError(problems)
    return config


def stored_tensors(folder: Path, config: DecoderConfig) -> dict[str, StoredTensor]:
    """Return where each tensor of a model is stored, by its key in the files.

    Raises:
        InputError: all that is missing, mis-shaped or not understood.
    """
    return match_layout(
        checkpoint_layout(config), read_headers(folder), config=config, folder=folder, weight_format=PLAIN
    )


def match_layout(
    layout: tuple[FusedTensor, ...],
    files: TensorFiles,
    *,
    config: DecoderConfig,
    folder: Path,
    weight_format: WeightFormat,
) -> dict[str, StoredTensor]:
    """Return where each tensor of the layout is stored.

    Raises:
        InputError: all that is missing, mis-shaped or not understood.
    """
    problems = list(files.problems)
    tensors = _with_model_prefix(files.tensors)
    wanted = {piece.key: piece.shape for fused in layout for piece in fused.pieces}

    quantised: set[str] = set()
    if config.stored_quantization == NF4.name:
        quantised = {piece.key for fused in layout if fused.is_linear for piece in fused.pieces}
    known = {*wanted, *(part for key in quantised for part in parts_of(key))}

    def refuse(key: str, found: str, allowed: str, hint: str = _SAME_MODEL) -> None:
        problems.append(Problem(where=f"{tensors[key].file}: {key}", found=found, allowed=allowed, hint=hint))

    for key, shape in wanted.items():
        stored = tensors.get(key)
        if stored is None:
            # with a file unreadable, what it should hold is not known to be missing
            if not files.problems:
                problems.append(_missing(key, shape, folder=folder, tensors=tensors))
        elif key in quantised:
            problems += tensor_problems(tensors, key, shape)
        elif stored.shape != shape:
            refuse(key, f"shape {list(stored.shape)}", f"shape {list(shape)}, as config.json says")
        elif stored.dtype not in weight_format.stored_dtypes:
            allowed = ", ".join(weight_format.stored_dtypes)
            refuse(key, f"dtype {stored.dtype}", allowed, "Use the unquantised checkpoint of this model.")
    for key in tensors:
        # tensors inside the layers that this architecture does not compute with: ignoring them would be wrong
        match = re.match(r"model\.layers\.(\d+)\.", key)
        if match and int(match[1]) < config.num_layers and key not in known and "rotary_emb." not in key:
            found = f"a tensor that {config.architecture} with this config.json does not use"
            refuse(key, found, "the tensors of its layers")
    if problems:
        raise InputError(problems)
    return {key: tensors[key] for key in known if key in tensors}


def _with_model_prefix(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Checkpoints saved from the bare decoder lack the ``model.`` that those of the language model have."""
    if any(key.startswith("model.") for key in tensors):
        return dict(tensors)
    return {key if key.startswith("lm_head.") else f"model.{key}": stored for key, stored in tensors.items()}


def _missing(key: str, shape: tuple[int, ...], *, folder: Path, tensors: Mapping[str, StoredTensor]) -> Problem:
    nearest = difflib.get_close_matches(key, tensors, n=1)
    return Problem(
        where=f"{folder}: {key}",
        found=f"no such tensor{f' (nearest: {nearest[0]})' if nearest else ''}",
        allowed=f"a tensor of shape {list(shape)}",
        hint="Fetch all weight files of the model again.",
    )
