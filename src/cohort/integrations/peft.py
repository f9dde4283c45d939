"""Cohort's packed linear inside an existing PEFT model, so that TRL and Trainer users benefit without migrating."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.integrations.peft_bases import base_width, is_plain, is_quantised
from cohort.integrations.peft_layers import SiblingLayers

__all__ = ["accelerate"]

# linears that the decoders of transformers call with the same input, one after the other
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def accelerate(model: Any, *, fuse_siblings: bool = True) -> int:
    """Make the LoRA linears of a PEFT model compute with fewer launches, in place: siblings in one call.

    One adapter without dropout is a few plain products in the stream's dtype; dropout and batches of several adapters
    are computed by :func:`cohort.kernels.packed_linear.packed_linear`.

    Parameters, their names, saving and loading stay PEFT's; outputs and gradients are the same within rounding, also
    under autocast, with gradient checkpointing and on base models that bitsandbytes, HQQ or torchao quantised: the base
    layer's own forward computes its share. Dropout has PEFT's meaning and other masks: they come from keys that
    torch's generator draws. A batch of mixed ``adapter_names`` is one product. Where adapters are disabled or merged,
    where several are active at once, and where the input has another dtype than the base weight, PEFT's own forward
    runs.

    Args:
        model: What ``peft.get_peft_model`` or ``PeftModel.from_pretrained`` returned.
        fuse_siblings: Compute q, k and v, and gate and up, in one call. Under dropout their base weights then lie in
            one tensor, which a library that divides or replaces weights may not expect.

    Returns:
        How many linears were changed.

    Raises:
        InputError: the model has no LoRA linears, or some use features that the packed linear lacks: DoRA, a bias in
            B, a trained base weight, a base layer quantised in another way; all of them are named.
    """
    from peft.tuners.lora.layer import LoraLayer

    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    if not layers:
        raise InputError(
            Problem(
                where="accelerate(model)",
                found=f"{type(model).__name__} without LoRA layers",
                allowed="a model of peft.get_peft_model or PeftModel.from_pretrained with LoRA",
                hint="Add an adapter with PEFT first.",
            )
        )
    unsupported = {name: found for name, layer in layers.items() if (found := _unsupported(layer)) is not None}
    if unsupported:
        allowed = "plain LoRA on a frozen torch.nn.Linear, or on one that bitsandbytes, HQQ or torchao quantised"
        raise InputError(
            [Problem(where=name, found=what, allowed=allowed, hint=hint) for name, (what, hint) in unsupported.items()]
        )
    for siblings in _groups(layers) if fuse_siblings else ({name: layer} for name, layer in layers.items()):
        group = SiblingLayers(siblings)
        for place, layer in enumerate(siblings.values()):
            layer.forward = partial(group.forward, place)
    return len(layers)


def _groups(layers: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the layers in groups that read one input; most stand alone."""
    rest = dict(layers)
    while rest:
        path = next(iter(rest))
        parent, _, name = path.rpartition(".")
        members = next((kinds for kinds in _SIBLINGS if name in kinds), (name,))
        group = {own: rest[own] for kind in members if (own := f"{parent}.{kind}".lstrip(".")) in rest}
        if len({base_width(layer.get_base_layer()) for layer in group.values()}) > 1:
            group = {path: rest[path]}
        for own in group:
            del rest[own]
        yield group


def _unsupported(layer: Any) -> tuple[str, str] | None:
    """Return which feature of a LoRA layer the packed linear lacks, and what to do; None for a plain one."""
    base = layer.get_base_layer()
    if not is_plain(base) and not is_quantised(base):
        return f"a base layer of type {type(base).__name__}", "Load the base model as it is or by bitsandbytes."
    if is_plain(base) and base.weight.requires_grad:
        return "a base weight that is trained", "Freeze it: weight.requires_grad_(False)."
    if any(layer.use_dora.values()) or getattr(layer, "lora_variant", {}):
        return "DoRA or another variant of LoRA", "Use plain LoRA."
    if any(module.bias is not None for module in layer.lora_B.values()):
        return "lora_bias=True", "Set lora_bias=False."
    return None
