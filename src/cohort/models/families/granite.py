"""Granite 3 and 4 dense: four factors, on the token rows, the scores, what joins the stream, and the logits."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="granite",
    architecture="GraniteForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    mlp_bias=lambda settings: bool(settings.mlp_bias),
    embedding_scale=lambda settings: float(settings.embedding_multiplier),
    attention_scale=lambda settings: float(settings.attention_multiplier),
    residual_scale=lambda settings: float(settings.residual_multiplier),
    head_scale=lambda settings: 1 / float(settings.logits_scaling),
)
