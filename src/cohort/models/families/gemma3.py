"""Gemma 3, its text models: as Gemma 2 without caps, queries and keys normed, two bases of rotary frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cohort.models.families.family import ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]


def _local_base(settings: Any) -> float:
    # transformers 5 keeps the rules of both kinds of layers; 4 has a setting for the base of those with a window
    rules: Mapping[str, Any] = getattr(settings, "rope_parameters", None) or {}
    local = rules.get("sliding_attention")
    return float(settings.rope_local_base_freq if local is None else local["rope_theta"])


def _rotates_windows_plainly(raw: Mapping[str, Any]) -> bool:
    local = (raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    return str(local.get("rope_type", "default")) == "default"


FAMILY = ModelFamily(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
    windows=windows_by_layer_type,
    activation=lambda settings: str(settings.hidden_activation),
    norm_offset=1.0,
    post_norms=True,
    embedding_scale=lambda settings: math.sqrt(settings.hidden_size),
    # only the 27B model divides by another number than its head's width
    attention_scale=lambda settings: (
        None if settings.query_pre_attn_scalar == settings.head_dim else settings.query_pre_attn_scalar**-0.5
    ),
    attention_cap=lambda settings: settings.attn_logit_softcapping,
    logit_cap=lambda settings: settings.final_logit_softcapping,
    local_rotary_base=_local_base,
    computes=_rotates_windows_plainly,
    # the attention here is causal, and a model trained with another would compute nonsense without an error
    refused=("use_bidirectional_attention",),
)
