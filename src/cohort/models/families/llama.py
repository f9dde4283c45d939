"""Llama 2, 3, 3.1, 3.2 and everything saved in their format."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="llama",
    architecture="LlamaForCausalLM",
    gguf_architecture="llama",
    gguf_pairs_rotated=True,
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    mlp_bias=lambda settings: bool(settings.mlp_bias),
)
