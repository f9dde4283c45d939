"""GLM-4 of 2024: gate and up in one linear, and half of each head rotated, entries next to each other."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="glm",
    architecture="GlmForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    has_fused_gate_up=True,
    rotates_part=True,
    rotates_pairs=True,
)
