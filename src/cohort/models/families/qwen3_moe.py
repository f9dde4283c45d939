"""Qwen3-MoE: Qwen3's attention over blocks of many small experts; settings may leave some layers dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.models.experts.mixture import MixtureOfExperts
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]


def _mixture(settings: Any) -> MixtureOfExperts:
    dense = frozenset(getattr(settings, "mlp_only_layers", None) or ())
    step = int(settings.decoder_sparse_step)
    return MixtureOfExperts(
        num_experts=_num_experts(settings),
        experts_per_token=settings.num_experts_per_tok,
        intermediate_size=settings.moe_intermediate_size,
        renormalises=bool(settings.norm_topk_prob),
        sparse_layers=frozenset(
            layer for layer in range(settings.num_hidden_layers) if layer not in dense and (layer + 1) % step == 0
        ),
    )


def _num_experts(settings: Any) -> int:
    # transformers 5 writes the first, transformers 4 and the published checkpoints the second
    found = getattr(settings, "num_local_experts", None)
    return int(settings.num_experts if found is None else found)


def _has_experts(raw: Mapping[str, Any]) -> bool:
    """Return whether weights are stored as numbers, and there are experts at all."""
    counts = (raw.get(name) for name in ("num_experts", "num_local_experts"))
    return not raw.get("quantization_config") and all(count != 0 for count in counts)


def _windows(settings: Any) -> tuple[int | None, ...]:
    window = settings.sliding_window if settings.use_sliding_window else None
    return (window,) * int(settings.num_hidden_layers)


FAMILY = ModelFamily(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
    windows=_windows,
    mixture=_mixture,
    # experts stored in blocks of fp8 are read by transformers, as the numbers that they mean
    computes=_has_experts,
)
