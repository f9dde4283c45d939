"""Ministral 3, its text models: Mistral whose queries grow with the logarithm of their position."""

from __future__ import annotations

from typing import Any

from cohort.models.config import QueryGrowth
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]


def _growth(settings: Any) -> QueryGrowth:
    rules = settings.rope_parameters
    return QueryGrowth(beta=float(rules["llama_4_scaling_beta"]), period=int(rules["original_max_position_embeddings"]))


FAMILY = ModelFamily(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    windows=lambda settings: (settings.sliding_window,) * int(settings.num_hidden_layers),
    query_growth=_growth,
    # without them transformers computes nothing either
    computes=lambda raw: "llama_4_scaling_beta" in (raw.get("rope_parameters") or {}),
)
