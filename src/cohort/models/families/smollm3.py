"""SmolLM3: every fourth layer has no rotary embedding."""

from __future__ import annotations

from typing import Any

from cohort.models.families.family import ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]


def _unrotated(settings: Any) -> frozenset[int]:
    # 1 for layers that rotate, 0 for those that do not, whatever the setting's name says
    return frozenset(layer for layer, rotates in enumerate(settings.no_rope_layers) if not rotates)


FAMILY = ModelFamily(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    mlp_bias=lambda settings: bool(settings.mlp_bias),
    windows=windows_by_layer_type,
    unrotated_layers=_unrotated,
)
