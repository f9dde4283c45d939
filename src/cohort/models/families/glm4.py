"""GLM-4-0414 and GLM-Z1: as GLM-4 of 2024, with norms after the blocks as well."""

from __future__ import annotations

from cohort.models.config import LayerNorms
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    has_fused_gate_up=True,
    rotates_part=True,
    rotates_pairs=True,
    norms=LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
)
