"""OLMo 2: norms after each block alone, queries and keys normed over all heads."""

from __future__ import annotations

from cohort.models.config import LayerNorms
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY", "NORMS_AFTER"]

NORMS_AFTER = LayerNorms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)

FAMILY = ModelFamily(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
    norms_all_heads=True,
    norms=NORMS_AFTER,
)
