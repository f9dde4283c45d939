"""Merging an adapter into its base model's own files, shard by shard."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from cohort.adapters.expert_names import parameter_of
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS
from cohort.adapters.peft_files.merge_experts import ExpertDeltas
from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.adapters.variants.dora import row_norms
from cohort.core.errors import InputError, Problem

__all__ = ["merge_into_base"]

_HOLDERS = {"language_model", "model", "transformer"}
_NOT_COPIED = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


def merge_into_base(
    base_directory: Path,
    adapter: PeftAdapter,
    output_directory: Path,
    *,
    shards: Sequence[Path],
    fan_in_fan_out: bool = False,
    input_first: Mapping[str, bool] | None = None,
) -> None:
    """Write the base model with the adapted weight in place of every W, in the base's own files and number type.

    Modules that the adapter has whole take the place of the base's. Where these share one table, as PEFT does the
    merged model has two, and its configuration says so.

    The sum is taken in float32 and rounded once to the stored type. Every other file (configuration, tokenizer) is
    copied. Nothing is computed on more than one tensor at a time, so the model need not fit in memory twice.

    Args:
        base_directory: Local directory of the base model.
        output_directory: Existing empty directory.
        shards: The safetensors files of ``base_directory`` that make up the model; others, such as a second copy of
            the weights in another layout, are left out: they would not hold the adapter.
        fan_in_fan_out: Whether the base model keeps the weights of its linears as [K, N].
        input_first: By stacked parameter of experts, whether the base model keeps its weights as [E, K, N].

    Raises:
        InputError: an adapted linear has no weight in the base, or a stored format without plain weights.
    """
    experts = ExpertDeltas(adapter=adapter, input_first=input_first or {})
    linears = {module for module in adapter.modules if parameter_of(module) == module}
    missing, whole = linears | experts.names, _whole_modules(adapter)
    adapted = {_without_holders(module): module for module in linears}
    # where both read one table the file has one, and the head's is to be added
    lacks_head = bool(whole) and not _has_tensor(shards, f"{SAVED_PATHS[HEAD]}.weight")
    for shard in shards:
        with safe_open(shard, framework="pt") as opened:
            metadata = opened.metadata() or {"format": "pt"}
            tensors: dict[str, Tensor] = {}
            for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                module = name.removesuffix(".weight")
                # checkpoints saved from the bare decoder lack the first part of every name
                module = adapted.get(_without_holders(module), module)
                module = module if module in linears or module in SAVED_PATHS.values() else f"model.{module}"
                tensor = opened.get_tensor(name)
                if module == SAVED_PATHS[EMBEDDING] and lacks_head:
                    head = adapter.saved_table(HEAD).to(tensor.dtype) if HEAD in whole.values() else tensor
                    tensors[f"{SAVED_PATHS[HEAD]}.weight"] = head.clone()
                if module in missing:
                    missing.discard(module)
                    tensor = tensor.t() if fan_in_fan_out else tensor
                    tensor = _merged(tensor, adapter, module)
                    tensor = tensor.t().contiguous() if fan_in_fan_out else tensor
                elif module in whole:
                    tensor = _replaced(tensor, adapter, whole[module])
                elif (of_experts := experts.found_in(name)) is not None:
                    parameter, delta = of_experts
                    missing.discard(parameter)
                    tensor = _with_delta(tensor, delta, name)
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
    if lacks_head:
        _untie(output_directory)


def _without_holders(path: str) -> str:
    """Return the path of a module within its decoder: files and models differ in what they put before that."""
    parts = path.split(".")
    while parts[0] in _HOLDERS:
        parts = parts[1:]
    return ".".join(parts)


def _whole_modules(adapter: PeftAdapter) -> dict[str, str]:
    """Return the names of the modules that an adapter has whole, by full path."""
    return {} if adapter.spec.saved is None else {SAVED_PATHS[name]: name for name in adapter.spec.saved.names}


def _has_tensor(shards: Sequence[Path], name: str) -> bool:
    for shard in shards:
        with safe_open(shard, framework="pt") as opened:
            if name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                return True
    return False


def _replaced(table_VD: Tensor, adapter: PeftAdapter, name: str) -> Tensor:
    own_VD = adapter.saved_table(name)
    if table_VD.shape != own_VD.shape:
        raise InputError(
            Problem(
                where=f"{SAVED_PATHS[name]}.weight",
                found=f"shape {list(table_VD.shape)}",
                allowed=f"shape {list(own_VD.shape)}, as the adapter's",
                hint="Name the base model that the adapter was trained on.",
            )
        )
    return own_VD.to(table_VD.dtype)


def _untie(directory: Path) -> None:
    """Let a merged model's configuration and index name a head of its own, in the file that has the embedding."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "tie_word_embeddings": False}, indent=2) + "\n", encoding="utf-8")
    index_path = directory / "model.safetensors.index.json"
    if not index_path.is_file():
        return
    index = json.loads(index_path.read_text(encoding="utf-8"))
    places = index["weight_map"]
    shard = next(places[name] for name in places if name.endswith(f"{EMBEDDING}.weight"))
    places[f"{SAVED_PATHS[HEAD]}.weight"] = shard
    index_path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _with_delta(weight: Tensor, delta: Tensor, name: str) -> Tensor:
    _require_plain(weight, name)
    if weight.shape != delta.shape:
        raise InputError(
            Problem(
                where=name,
                found=f"shape {list(weight.shape)}",
                allowed=f"shape {list(delta.shape)}, as the adapter's",
                hint="Name the base model that the adapter was trained on.",
            )
        )
    return (weight.to(torch.float32) + delta).to(weight.dtype).contiguous()


def _require_plain(weight: Tensor, name: str) -> None:
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise InputError(
            Problem(
                where=name,
                found=f"stored as {weight.dtype}",
                allowed="float32, bfloat16 or float16",
                hint="Merge into the unquantised base: merging into a quantised one loses quality.",
            )
        )


def _merged(weight_NK: Tensor, adapter: PeftAdapter, module: str) -> Tensor:
    _require_plain(weight_NK, f"{module}.weight")
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
