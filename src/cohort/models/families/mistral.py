"""Mistral: no biases, and in the first versions a sliding window in every layer."""

from __future__ import annotations

from cohort.models.families.family import Family

__all__ = ["MISTRAL"]

MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    examples="Mistral 7B, Mistral Nemo",
    qkv_bias=lambda _: False,
    output_bias=lambda _: False,
    mlp_bias=lambda _: False,
    qk_norm=False,
    windows=lambda settings: (settings.sliding_window,) * int(settings.num_hidden_layers),
)
