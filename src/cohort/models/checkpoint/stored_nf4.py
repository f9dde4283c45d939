"""Checkpoints that bitsandbytes saved in 4-bit NormalFloat: which tensors stand for a weight, and reading them.

For a weight W: ``W`` (uint8, two codes a byte), ``W.absmax`` (uint8, the scales' codes), ``W.nested_absmax`` and
``W.nested_quant_map`` (float32), ``W.quant_map`` (float32 [16]) and ``W.quant_state.bitsandbytes__nf4``, JSON as bytes
with the shape, the block sizes and the scales' mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.kernels.nf4_weight.reference import BLOCK, NESTED_BLOCK, VALUES
from cohort.models.checkpoint.copies_ahead import OwnCopies
from cohort.models.checkpoint.safetensors_files import StoredTensor
from cohort.models.weight_formats.weight_format import StoredTensors

__all__ = ["config_problem", "is_stored", "parts_of", "read_stored", "tensor_problems"]

_STATE = "quant_state.bitsandbytes__nf4"
_PARTS = ("absmax", "nested_absmax", "nested_quant_map", "quant_map", _STATE)
_SAVED = "4-bit nf4 with double quantisation, as bitsandbytes saves it"


def config_problem(settings: Mapping[str, Any]) -> str | None:
    """Return what is stored where ``quantization_config`` says something else than nf4; None where it says nf4."""
    method = settings.get("quant_method", "unknown")
    if method != "bitsandbytes":
        return f"weights stored as '{method}'"
    if not settings.get("load_in_4bit"):
        return "weights stored as bitsandbytes' 8-bit integers"
    kind = settings.get("bnb_4bit_quant_type")
    if kind != "nf4":
        return f"weights stored as bitsandbytes' '{kind}'"
    return None if settings.get("bnb_4bit_use_double_quant") else "weights stored as nf4 without double quantisation"


def parts_of(key: str) -> tuple[str, ...]:
    """Return the keys that stand next to a weight's own."""
    return tuple(f"{key}.{part}" for part in _PARTS)


def is_stored(stored: Mapping[str, StoredTensor], key: str) -> bool:
    return f"{key}.{_STATE}" in stored


def tensor_problems(tensors: Mapping[str, StoredTensor], key: str, shape: tuple[int, ...]) -> Iterator[Problem]:
    """Yield what is wrong with the tensors of a weight of ``shape``, by their headers."""
    num_weights = shape[0] * shape[1]
    num_blocks = -(-num_weights // BLOCK)
    sizes = {
        key: ("U8", -(-num_weights // 2)),
        f"{key}.absmax": ("U8", num_blocks),
        f"{key}.nested_absmax": ("F32", -(-num_blocks // NESTED_BLOCK)),
        f"{key}.nested_quant_map": ("F32", 256),
        f"{key}.quant_map": ("F32", len(VALUES)),
        f"{key}.{_STATE}": ("U8", None),
    }
    for name, (dtype, count) in sizes.items():
        found = tensors.get(name)
        if found is None:
            yield Problem(
                where=f"{tensors[key].file}: {name}",
                found="no such tensor",
                allowed=_SAVED,
                hint="Save the model again, with all linear layers in 4 bits but the head, or use the unquantised one.",
            )
            continue
        num_entries = 1
        for size in found.shape:
            num_entries *= size
        if found.dtype != dtype or count not in (None, num_entries):
            yield Problem(
                where=f"{found.file}: {name}",
                found=f"dtype {found.dtype}, shape {list(found.shape)}",
                allowed=f"dtype {dtype}" + ("" if count is None else f", {count:,} entries: a weight of {list(shape)}"),
                hint="Use the config.json and the weights of the same model.",
            )


def read_stored(
    read: Callable[[str], Tensor],
    key: str,
    shape: tuple[int, ...],
    *,
    where: str,
    device: torch.device,
    copies: OwnCopies,
) -> StoredTensors:
    """Return what the format keeps of a weight, exactly as it is stored; ``copies`` has to be waited for.

    Args:
        read: Returns a tensor of the checkpoint by its key.
        where: The file, for messages.

    Raises:
        InputError: the state describes another layout than this format's.
    """
    state = _state(read(f"{key}.{_STATE}"))
    expected = {"quant_type": "nf4", "blocksize": BLOCK, "nested_blocksize": NESTED_BLOCK, "shape": list(shape)}
    found = {name: state.get(name) for name in expected}
    values = read(f"{key}.quant_map").float()
    offset = state.get("nested_offset")
    if found != expected or not torch.allclose(values, torch.tensor(VALUES)) or not isinstance(offset, float | int):
        raise InputError(
            Problem(
                where=f"{where}: {key}.{_STATE}",
                found=json.dumps({**found, "nested_offset": offset}),
                allowed=json.dumps(expected) + ", the values of NormalFloat and a nested_offset",
                hint="Save the model again with bitsandbytes' defaults for nf4, or use the unquantised one.",
            )
        )

    def copied(name: str) -> Tensor:
        return copies.of(read(name).flatten(), device=device)

    return {
        "codes": copied(key),
        "scale_codes": copied(f"{key}.absmax"),
        "nested_scales": copied(f"{key}.nested_absmax"),
        "nested_map": copied(f"{key}.nested_quant_map"),
        "offset": torch.tensor(float(offset), dtype=torch.float32, device=device),
        "shape": torch.tensor(shape, dtype=torch.int64),
    }


def _state(content: Tensor) -> dict[str, Any]:
    try:
        found = json.loads(bytes(content.flatten().tolist()).decode())
    except (ValueError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
