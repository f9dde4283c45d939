"""How large a trial's adapter is where trials may be BD-LoRA or VeRA, whose rank alone does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal

__all__ = ["AdapterSize", "adapter_size"]


@dataclass(frozen=True, kw_only=True)
class AdapterSize:
    """What adapters of different kinds are compared by.

    Attributes:
        trainable_parameters: Entries inside of the blocks, or of VeRA's vectors, and those of whole modules.
        rank_of_equal_lora: The rank that plain LoRA of as many parameters would have, whole modules left out; no whole
            number in general.
        scale: The factor on the product of both factors.
    """

    trainable_parameters: int
    rank_of_equal_lora: float
    scale: float


def adapter_size(
    settings: Mapping[str, Any],
    *,
    shapes: Mapping[str, tuple[int, int, int]],
    lora: Mapping[str, Any],
    whole_entries: int = 0,
) -> AdapterSize:
    """Return the size of an adapter.

    Args:
        settings: The trial's hyperparameters.
        shapes: Inputs, outputs and count of the adapted linears of each name.
        lora: The section of the task file.
        whole_entries: Entries of the modules that it trains a copy of.
    """
    nblocks, section = int(settings.get("nblocks", 1)), lora.get("use_bdlora") or {}
    blocks = None
    if nblocks > 1:
        in_a, in_b = (
            section.get("target_modules_bd_a", ROW_PARALLEL),
            section.get("target_modules_bd_b", COLUMN_PARALLEL),
        )
        blocks = BlockDiagonal(nblocks=nblocks, target_modules_bd_a=tuple(in_a), target_modules_bd_b=tuple(in_b))
    is_vera = bool(settings.get("use_vera"))
    spec = AdapterSpec(
        r=int(settings["r"]),
        # VeRA has no alpha, and the spec wants one; its scale is set below
        lora_alpha=1.0 if is_vera else float(settings["lora_alpha"]),
        use_rslora=bool(settings.get("use_rslora", False)),
        use_bdlora=blocks,
    )
    plain = sum((ins + outs) * count for ins, outs, count in shapes.values())
    own = plain
    if blocks is not None:
        own = sum(blocks.width_of(name, (ins, outs)) * count for name, (ins, outs, count) in shapes.items())
    num_parameters, scale = spec.r * own, spec.scale
    if is_vera:
        # lambda_b for each output and lambda_d for each rank row; the projections are frozen
        num_parameters, scale = sum((outs + spec.r) * count for _, outs, count in shapes.values()), 1.0
    return AdapterSize(
        trainable_parameters=num_parameters + whole_entries,
        rank_of_equal_lora=round(num_parameters / plain, 4),
        scale=scale,
    )
