"""Cohort's packed linear inside an existing PEFT model, so that TRL and Trainer users benefit without migrating."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.core.errors import InputError, Problem
from cohort.kernels.packed_linear import LoraPart, SlotTable, packed_linear
from cohort.kernels.segments import SampleSpan, SegmentTable
from cohort.models.weight_formats.plain import FrozenLinear

__all__ = ["accelerate"]

# rank rows are read in tiles of 16: the rest of the last one is zeros
_RANK_TILE = 16


def accelerate(model: Any) -> int:
    """Make the LoRA linears of a PEFT model compute by :func:`cohort.kernels.packed_linear.packed_linear`, in place.

    Parameters, their names, saving and loading stay PEFT's; outputs and gradients are the same within the rounding of
    the model's dtype. Where PEFT itself would not add exactly one adapter (adapters disabled or merged, several active,
    a batch of mixed ``adapter_names``), under autocast, and where the input has another dtype than the base weight,
    PEFT's own forward runs.

    Args:
        model: What ``peft.get_peft_model`` or ``PeftModel.from_pretrained`` returned.

    Returns:
        How many linears were changed.

    Raises:
        InputError: the model has no LoRA linears, or some use features that the packed linear lacks: dropout, DoRA, a
            bias in B, a quantised or trained base weight; all of them are named.
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
        allowed = "plain LoRA on a frozen torch.nn.Linear"
        raise InputError(
            [Problem(where=name, found=what, allowed=allowed, hint=hint) for name, (what, hint) in unsupported.items()]
        )
    for layer in layers.values():
        layer.forward = MethodType(_packed_forward, layer)
    return len(layers)


def _unsupported(layer: Any) -> tuple[str, str] | None:
    """Return which feature of a LoRA layer the packed linear lacks, and what to do; None for a plain one."""
    base = layer.get_base_layer()
    if type(base) is not torch.nn.Linear:
        return f"a base layer of type {type(base).__name__}", "Load the base model unquantised, or leave it out."
    if base.weight.requires_grad:
        return "a base weight that is trained", "Freeze it: weight.requires_grad_(False)."
    if any(not isinstance(dropout, torch.nn.Identity) for dropout in layer.lora_dropout.values()):
        return "lora_dropout above 0", "Set lora_dropout=0.0; PEFT draws its masks in another way."
    if any(layer.use_dora.values()) or getattr(layer, "lora_variant", {}):
        return "DoRA or another variant of LoRA", "Use plain LoRA."
    if any(module.bias is not None for module in layer.lora_B.values()):
        return "lora_bias=True", "Set lora_bias=False."
    return None


def _packed_forward(layer: Any, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Replace the forward of ``peft.tuners.lora.layer.Linear``."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    # autocast would cast within one direction alone: backward runs outside of it
    mixed = torch.is_autocast_enabled(x.device.type) or x.dtype != layer.get_base_layer().weight.dtype
    if layer.disable_adapters or layer.merged or len(active) != 1 or mixed or arguments or options:
        result: Tensor = type(layer).forward(layer, x, *arguments, **options)
        return result
    (name,) = active
    base = layer.get_base_layer()
    a_rK, b_Nr = layer.lora_A[name].weight, layer.lora_B[name].weight
    rank, num_rows = a_rK.shape[0], x[..., 0].numel()
    x_TK = x.reshape(num_rows, x.shape[-1])
    padding = (0, 0, 0, -rank % _RANK_TILE)
    part = LoraPart(
        # PEFT keeps factors in float32 with a bf16 model; products run in the stream's dtype
        a_RK=F.pad(a_rK.to(x.dtype), padding),
        b_RN=F.pad(b_Nr.to(x.dtype).t().contiguous(), padding),
    )
    y_TN = packed_linear(
        x_TK,
        frozen=FrozenLinear(base.weight, base.bias),
        parts=[part],
        slots=SlotTable(row_starts=(0,), ranks=(rank,), scales=(float(layer.scaling[name]),), dropouts=(0.0,)),
        segments=SegmentTable(num_rows=num_rows, offsets=(0, num_rows), samples=(SampleSpan(0, num_rows, 0),)),
    )
    return y_TN.reshape(*x.shape[:-1], base.out_features)
