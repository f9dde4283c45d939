"""Qwen3: queries and keys are normalised per head, and the head width is its own setting."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
    windows=windows_by_layer_type,
)
