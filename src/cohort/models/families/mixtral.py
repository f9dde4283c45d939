"""Mixtral: Mistral's attention over blocks of a few large experts in every layer."""

from __future__ import annotations

from typing import Any

from cohort.models.experts.mixture import MixtureOfExperts
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]


def _mixture(settings: Any) -> MixtureOfExperts:
    return MixtureOfExperts(
        num_experts=settings.num_local_experts,
        experts_per_token=settings.num_experts_per_tok,
        intermediate_size=settings.intermediate_size,
        # as its code does whatever the settings say
        renormalises=True,
        sparse_layers=frozenset(range(settings.num_hidden_layers)),
        block="block_sparse_moe",
        gate="w1",
        up="w3",
        down="w2",
    )


FAMILY = ModelFamily(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    windows=lambda settings: (getattr(settings, "sliding_window", None),) * int(settings.num_hidden_layers),
    mixture=_mixture,
    # noise on what routers read is drawn in training by its own code alone
    computes=lambda raw: not raw.get("quantization_config") and not raw.get("router_jitter_noise"),
)
