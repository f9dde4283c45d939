"""Qwen2 and Qwen2.5: q, k and v always add a bias; a sliding window only where it is switched on."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_architecture="qwen2",
    qkv_bias=lambda _: True,
    windows=windows_by_layer_type,
)
