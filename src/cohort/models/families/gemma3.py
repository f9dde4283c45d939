"""Gemma 3, its text models: as Gemma 2 without caps, queries and keys normed, two bases of rotary frequencies."""

from __future__ import annotations

import math

from cohort.models.families.family import (
    NORMS_AROUND,
    ModelFamily,
    rotates_windows_plainly,
    windowed_rotary_base,
    windows_by_layer_type,
)

__all__ = ["FAMILY"]


FAMILY = ModelFamily(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
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
    local_rotary_base=windowed_rotary_base,
    computes=rotates_windows_plainly,
    # the attention here is causal, and a model trained with another would compute nonsense without an error
    refused=("use_bidirectional_attention",),
)
