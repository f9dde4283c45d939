"""Mistral: no biases, and in the first versions a sliding window in every layer."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="mistral",
    architecture="MistralForCausalLM",
    gguf_architecture="llama",
    gguf_pairs_rotated=True,
    windows=lambda settings: (settings.sliding_window,) * int(settings.num_hidden_layers),
)
