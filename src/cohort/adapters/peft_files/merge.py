"""Merging an adapter into its base model's own files, shard by shard."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.adapters.variants.magnitude import row_norms
from cohort.core.errors import InputError, Problem

__all__ = ["merge_into_base"]

_NOT_COPIED = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


def merge_into_base(
    base_directory: Path, adapter: PeftAdapter, output_directory: Path, *, shards: Sequence[Path]
) -> None:
    """Write the base model with the adapted weight in place of every W, in the base's own files and number type.

    The sum is taken in float32 and rounded once to the stored type. Every other file (configuration, tokenizer) is
    copied. Nothing is computed on more than one tensor at a time, so the model need not fit in memory twice.

    Args:
        base_directory: Local directory of the base model.
        output_directory: Existing empty directory.
        shards: The safetensors files of ``base_directory`` that make up the model; others, such as a second copy of
            the weights in another layout, are left out: they would not hold the adapter.

    Raises:
        InputError: an adapted linear has no weight in the base, or a stored format without plain weights.
    """
    missing = set(adapter.modules)
    for shard in shards:
        with safe_open(shard, framework="pt") as opened:
            metadata = opened.metadata() or {"format": "pt"}
            tensors: dict[str, Tensor] = {}
            for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                module = name.removesuffix(".weight")
                # checkpoints saved from the bare decoder lack the first part of every name
                module = module if module in missing else f"model.{module}"
                tensor = opened.get_tensor(name)
                if module in missing:
                    missing.discard(module)
                    tensor = _merged(tensor, adapter, module)
                tensors[name] = tensor
        merged = output_directory / shard.name
        save_file(tensors, merged, metadata=metadata)
        # safetensors makes files that only their owner may read, which a server of another user cannot load
        merged.chmod(stat.S_IMODE(shard.stat().st_mode) | stat.S_IWUSR)
    if missing:
        raise InputError(
            Problem(
                where=str(base_directory),
                found=f"no weight for {', '.join(sorted(missing)[:3])}",
                allowed="the base model that the adapter was trained on",
                hint="Name that base model, as safetensors files.",
            )
        )
    for path in base_directory.iterdir():
        if path.is_file() and path.suffix not in _NOT_COPIED:
            shutil.copy2(path, output_directory / path.name)


def _merged(weight_NK: Tensor, adapter: PeftAdapter, module: str) -> Tensor:
    if not weight_NK.is_floating_point() or weight_NK.element_size() < 2:
        raise InputError(
            Problem(
                where=f"{module}.weight",
                found=f"stored as {weight_NK.dtype}",
                allowed="float32, bfloat16 or float16",
                hint="Merge into the unquantised base: merging into a quantised one loses quality.",
            )
        )
    out_features, in_features = weight_NK.shape
    a_rK, b_Nr = adapter.factors(module, shape=(in_features, out_features))
    if weight_NK.shape != (b_Nr.shape[0], a_rK.shape[1]):
        raise InputError(
            Problem(
                where=f"{module}.weight",
                found=f"shape {list(weight_NK.shape)}",
                allowed=f"shape {[b_Nr.shape[0], a_rK.shape[1]]}, as the adapter's",
                hint="Name the base model that the adapter was trained on.",
            )
        )
    delta_NK = adapter.spec.scale_of(module) * (b_Nr.to(torch.float32) @ a_rK.to(torch.float32))
    sum_NK = weight_NK.to(torch.float32) + delta_NK
    if adapter.spec.use_dora:
        gain_N = adapter.magnitude(module).to(torch.float32) / row_norms(sum_NK, dtype=torch.float32)
        sum_NK *= gain_N[:, None]
    return sum_NK.to(weight_NK.dtype)
