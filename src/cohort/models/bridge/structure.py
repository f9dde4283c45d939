"""What a model of transformers is made of: its text decoder, list of layers, loss head and adaptable linears."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS
from cohort.core.errors import InputError, Problem

__all__ = [
    "expert_blocks",
    "expert_parameters",
    "expert_products",
    "is_transposed",
    "layer_list",
    "loss_head",
    "other_tensors",
    "plain_linears",
    "text_decoder",
    "whole_modules",
]

# An expert sees some rows alone, and a router decides which: neither is a linear over the stream.
_OF_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")
_ROUTERS = ("gate", "router")
# as peft.tuners.tuners_utils has them
_MAMBA_TYPES = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
# as peft.utils.transformers_weight_conversion has them, by the architecture whose checkpoints are laid out alike
_EXPERT_NAMES = {
    "mixtral": frozenset({"gate", "w1", "w2", "w3"}),
    "qwen2_moe": frozenset({"gate", "gate_proj", "up_proj", "down_proj"}),
}


def is_transposed(module: nn.Module) -> bool:
    """Return whether a module is GPT-2's linear, whose weight is [K, N]; transformers is not imported for it."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def text_decoder(model: Any) -> nn.Module:
    """Return the part of a model that turns tokens into the hidden states behind its last norm."""
    found = model.get_decoder() if hasattr(model, "get_decoder") else None
    # some say that they are their own decoder
    candidates = (found, model.base_model, getattr(model, "model", None), getattr(model, "transformer", None))
    decoder: nn.Module = next((part for part in candidates if part is not None and part is not model), model)
    return decoder


def loss_head(model: Any, path: Path) -> nn.Linear:
    """Return the linear that gives the logits.

    Raises:
        InputError: the logits are no product with one weight.
    """
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        return head
    raise InputError(
        Problem(
            where=str(path),
            found=f"{type(model).__name__}, whose logits come from a {type(head).__name__}",
            allowed="a loss head that is one linear",
            hint="Choose another base model.",
        )
    )


def layer_list(model: nn.Module, decoder: nn.Module, path: Path) -> str:
    """Return the path, within ``model``, of the decoder's list of layers: the one with most weights.

    Raises:
        InputError: it has none.
    """
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise InputError(
            Problem(
                where=str(path),
                found=f"{type(model).__name__}, which has no list of layers",
                allowed="a decoder whose layers stand in a list",
                hint="Choose another base model.",
            )
        )
    largest: nn.ModuleList = max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()))
    return names[id(largest)]


def plain_linears(model: nn.Module, layers: str) -> list[tuple[str, int, int]]:
    """Return path, input width and output width of each linear in the layers that sees every row of the stream."""
    found, taken = [], _names_left_out(model)
    for name, module in model.get_submodule(layers).named_modules(prefix=layers):
        if _OF_EXPERTS.search(name) or _is_router(model, name) or name.rsplit(".", 1)[-1] in taken:
            continue
        if is_transposed(module):
            width, out = module.weight.shape
            found.append((name, int(width), int(out)))
        elif isinstance(module, nn.Linear):
            found.append((name, module.in_features, module.out_features))
    return found


def expert_blocks(model: nn.Module, layers: str) -> dict[str, Any]:
    """Return by path the blocks of experts whose weights are stacked and whose computation transformers lets replace.

    They say themselves how: with a gate or without, with biases, and which axis is the input's. Older versions of
    transformers, and some architectures, have none.
    """
    return {
        name: module
        for name, module in model.get_submodule(layers).named_modules(prefix=layers)
        if all(hasattr(module, own) for own in ("has_gate", "has_bias", "is_transposed", "_apply_gate", "num_experts"))
        and all(getattr(module, own, torch.empty(0)).dim() == 3 for own in expert_products(module))
    }


def expert_products(block: Any) -> tuple[str, str]:
    """Return the names of a block's two stacked parameters, in the order in which a row passes them."""
    return ("gate_up_proj" if block.has_gate else "up_proj", "down_proj")


def expert_parameters(model: nn.Module, layers: str) -> list[tuple[str, int, int, int, bool]]:
    """Return path, experts, input width, output width and whether the input's axis is first of stacked parameters."""
    found = []
    for name, block in expert_blocks(model, layers).items():
        for own in expert_products(block):
            num_experts, first, second = getattr(block, own).shape
            ins, outs = (first, second) if block.is_transposed else (second, first)
            found.append((f"{name}.{own}", int(num_experts), int(ins), int(outs), bool(block.is_transposed)))
    return found


def _names_left_out(model: Any) -> frozenset[str]:
    """Return the names of linears whose adapters PEFT would refuse, or would load into other weights.

    It takes some names for experts, also where a dense layer or a shared expert has them.
    """
    if model.config.model_type in _MAMBA_TYPES:
        return frozenset({"out_proj"})
    try:
        from transformers.conversion_mapping import _MODEL_TO_CONVERSION_PATTERN
    except ImportError:
        # transformers 4 has experts as linears of their own
        return frozenset()
    return _EXPERT_NAMES.get(_MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type, ""), frozenset())


def _is_router(model: nn.Module, name: str) -> bool:
    parent, _, own = name.rpartition(".")
    return own in _ROUTERS and any(child == "experts" for child, _ in model.get_submodule(parent).named_children())


def whole_modules(model: Any) -> tuple[str, ...]:
    """Return which of embedding and head an adapter can train a copy of: those that PEFT finds by these names.

    A copy is one table, looked up or multiplied by; a head with a bias, or a table of another width, is something else.
    """
    paths = {id(module): name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found = []
    if paths.get(id(embedding)) == SAVED_PATHS[EMBEDDING] and embedding.weight.shape == head.weight.shape:
        found.append(EMBEDDING)
    if paths.get(id(head)) == SAVED_PATHS[HEAD] and head.bias is None:
        found.append(HEAD)
    return tuple(found)


def other_tensors(model: nn.Module, linears: list[tuple[str, int, int]]) -> list[tuple[str, list[int]]]:
    """Return key and shape of every tensor that is not the weight of one of ``linears``, shared ones once."""
    weights = {f"{name}.weight" for name, _, _ in linears}
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(key, list(tensor.shape)) for key, tensor in named if key not in weights]
