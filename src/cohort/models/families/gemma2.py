"""Gemma 2: norms before and after each block, GELU, soft caps, and a window in every other layer."""

from __future__ import annotations

import math

from cohort.models.families.family import NORMS_AROUND, ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf_architecture="gemma2",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    windows=windows_by_layer_type,
    activation=lambda settings: str(settings.hidden_activation),
    norm_offset=1.0,
    norms=NORMS_AROUND,
    embedding_scale=lambda settings: math.sqrt(settings.hidden_size),
    # only the 27B model divides by another number than its head's width
    attention_scale=lambda settings: (
        None if settings.query_pre_attn_scalar == settings.head_dim else settings.query_pre_attn_scalar**-0.5
    ),
    attention_cap=lambda settings: settings.attn_logit_softcapping,
    logit_cap=lambda settings: settings.final_logit_softcapping,
    # the attention here is causal, and a model trained with another would compute nonsense without an error
    refused=("use_bidirectional_attention",),
)
