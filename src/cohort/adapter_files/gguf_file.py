"""An adapter as the LoRA file that llama.cpp loads next to a GGUF of the base model.

Shapes:  r rank · K input width · N output width
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.core.errors import InputError, Problem
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.families import FAMILIES

__all__ = ["GgufType", "require_gguf", "write_gguf"]

_WHERE = "--to gguf"


class GgufType(StrEnum):
    """The number type of the factors, by llama.cpp's names."""

    F32 = "f32"
    F16 = "f16"


def require_gguf() -> None:
    """Raise InputError where the package that writes GGUF files is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise InputError(
            Problem(
                where=_WHERE,
                found="no package gguf",
                allowed="the extra `gguf`",
                hint="Run `pip install 'cohort-lora[gguf]'`.",
            )
        )


def write_gguf(adapter: PeftAdapter, path: Path, *, config: DecoderConfig, base_model: str, kind: GgufType) -> None:
    """Write ``adapter`` to ``path``, a new file.

    llama.cpp scales every pair of factors by ``adapter.lora.alpha / r``. A linear whose scale is another one (rsLoRA,
    patterns, VeRA) has the difference multiplied into its B.

    Args:
        config: Of the base model.
        base_model: Its name, for the file's description.

    Raises:
        InputError: llama.cpp knows no model of this family, or the adapter is more than two factors for each linear.
    """
    require_gguf()
    # optional: the extra `gguf`
    import gguf

    family = FAMILIES.find(config.family)
    if family is None or not family.gguf_architecture:
        known = ", ".join(sorted(own.model_type for own in FAMILIES.usable() if own.gguf_architecture))
        hint = "Write --to merged, and convert that with llama.cpp's convert_hf_to_gguf.py."
        raise InputError(Problem(where=_WHERE, found=f"a model of type {config.family}", allowed=known, hint=hint))
    _require_factors(adapter)
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.gguf_architecture)
    names = gguf.get_tensor_name_map(architecture, config.num_layers)
    writer = gguf.GGUFWriter(path, family.gguf_architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(f"LoRA adapter for {base_model}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind is GgufType.F32 else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, adapter.spec.lora_alpha)
    for module, a_rK, b_Nr in _scaled_factors(adapter, config):
        if family.gguf_pairs_rotated and module.endswith(("q_proj", "k_proj")):
            b_Nr = _paired(b_Nr, num_heads=config.num_heads if module.endswith("q_proj") else config.num_kv_heads)
        name = names.get_name(module)
        assert name is not None, f"gguf names no tensor of {family.gguf_architecture} for {module}"
        for suffix, factor in (("lora_a", a_rK), ("lora_b", b_Nr)):
            writer.add_tensor(f"{name}.weight.{suffix}", _numbers(factor, kind, module=module))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _require_factors(adapter: PeftAdapter) -> None:
    """Refuse an adapter that is no sum of products of two factors: llama.cpp would leave the rest out."""
    found = None
    if adapter.spec.use_dora:
        found = "a DoRA adapter, whose magnitudes a GGUF adapter has no place for"
    elif adapter.spec.saved is not None:
        names = " and ".join(adapter.spec.saved.names)
        found = f"an adapter with a trained {names}, which a GGUF adapter has no place for"
    if found is not None:
        raise InputError(
            Problem(
                where=_WHERE,
                found=found,
                allowed="LoRA, rsLoRA, BD-LoRA, PiSSA, OLoRA or VeRA",
                hint="Write --to merged, and convert that with llama.cpp's convert_hf_to_gguf.py.",
            )
        )


def _scaled_factors(adapter: PeftAdapter, config: DecoderConfig) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield module, A [r, K] and B [N, r], which llama.cpp's scale makes the adapter's change of a weight."""
    spec, shapes = adapter.spec, linear_shapes(config)
    for module in adapter.modules:
        a_rK, b_Nr = (factor.to(torch.float32) for factor in adapter.factors(module, shape=shapes[module]))
        theirs, ours = spec.lora_alpha / a_rK.shape[0], spec.scale_of(module)
        yield module, a_rK, b_Nr if theirs == ours else b_Nr * (ours / theirs)


def _paired(b_Nr: Tensor, *, num_heads: int) -> Tensor:
    """Return the rows of each head with those that are rotated together next to each other.

    transformers rotates row i of a head with row i + half of it; llama.cpp, like Meta's own checkpoints of Llama,
    rotates neighbours. Where it moves the rows of a weight, those of B move with them, and A stays.
    """
    half = b_Nr.shape[0] // num_heads // 2
    return b_Nr.reshape(num_heads, 2, half, -1).transpose(1, 2).reshape(b_Nr.shape)


def _numbers(factor: Tensor, kind: GgufType, *, module: str) -> Any:
    if kind is GgufType.F32:
        return factor.contiguous().numpy()
    half = factor.to(torch.float16)
    if not bool(half.isfinite().all()):
        raise InputError(
            Problem(
                where=f"{_WHERE}: {module}",
                found=f"a number of {factor.abs().max():g}",
                allowed="at most 65504, the largest of float16",
                hint="Write --outtype f32.",
            )
        )
    return half.contiguous().numpy()
