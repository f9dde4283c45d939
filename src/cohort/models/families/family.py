"""What one family of checkpoints is called and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.models.config import LayerNorms, QueryGrowth
from cohort.models.experts.mixture import MixtureOfExperts

__all__ = [
    "NORMS_AROUND",
    "ModelFamily",
    "no_windows",
    "rotates_windows_plainly",
    "windowed_rotary_base",
    "windows_by_layer_type",
]

_NORMS_BEFORE = LayerNorms()
NORMS_AROUND = LayerNorms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
"""Norms before and after each block, by the names that Gemma has for them."""


def no_windows(settings: Any) -> tuple[int | None, ...]:
    """Every layer sees the whole sequence."""
    return (None,) * int(settings.num_hidden_layers)


def windows_by_layer_type(settings: Any) -> tuple[int | None, ...]:
    """Return ``sliding_window`` for the layers that ``layer_types`` names sliding.

    With Qwen's ``use_sliding_window`` off there are none. Without ``layer_types`` they are those from
    ``max_window_layers`` on.
    """
    window = settings.sliding_window if getattr(settings, "use_sliding_window", True) else None
    kinds = getattr(settings, "layer_types", None) or [
        "sliding_attention" if layer >= settings.max_window_layers else "full_attention"
        for layer in range(int(settings.num_hidden_layers))
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def windowed_rotary_base(settings: Any) -> float:
    """Return the base of the rotary frequencies of layers with a window, where the settings tell two kinds apart."""
    # transformers 5 keeps the rules of both kinds of layers; 4 has a setting for the base of those with a window
    rules: Mapping[str, Any] = getattr(settings, "rope_parameters", None) or {}
    local = rules.get("sliding_attention")
    return float(settings.rope_local_base_freq if local is None else local["rope_theta"])


def rotates_windows_plainly(raw: Mapping[str, Any]) -> bool:
    """Return whether the frequencies of layers with a window follow no scaling rule."""
    local = (raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    return str(local.get("rope_type", "default")) == "default"


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """One family. A function of ``settings`` reads the checkpoint's transformers configuration.

    What has a default may be left out: the defaults are Llama's. The attributes that are not listed mean what they mean
    in :class:`~cohort.models.config.DecoderConfig`.

    Attributes:
        model_type: As ``config.json`` has it.
        architecture: Class name of its causal language model.
        activation: transformers' name of the MLP's activation.
        gguf_architecture: What llama.cpp calls it; empty where no export to it was proved.
        gguf_pairs_rotated: llama.cpp keeps rows of q and k that are rotated together next to each other.
        rotates_part: ``partial_rotary_factor`` says which share of each head is rotated; others need 1.
        local_rotary_base: Base of the rotary frequencies of layers with a window, where it is another.
        computes: Whether it computes a checkpoint, by the content of ``config.json``; any other goes to transformers.
        refused: Settings that nothing here computes: the checkpoint must leave them off.
    """

    model_type: str
    architecture: str
    qkv_bias: Callable[[Any], bool] = lambda _: False
    output_bias: Callable[[Any], bool] = lambda _: False
    mlp_bias: Callable[[Any], bool] = lambda _: False
    qk_norm: bool = False
    windows: Callable[[Any], tuple[int | None, ...]] = no_windows
    activation: Callable[[Any], str] = lambda settings: str(settings.hidden_act)
    norm_offset: float = 0.0
    norms: LayerNorms = _NORMS_BEFORE
    embedding_scale: Callable[[Any], float] = lambda _: 1.0
    attention_scale: Callable[[Any], float | None] = lambda _: None
    attention_cap: Callable[[Any], float | None] = lambda _: None
    logit_cap: Callable[[Any], float | None] = lambda _: None
    gguf_architecture: str = ""
    gguf_pairs_rotated: bool = False
    refused: tuple[str, ...] = ()
    norms_all_heads: bool = False
    has_fused_qkv: bool = False
    has_fused_gate_up: bool = False
    rotates_pairs: bool = False
    query_growth: Callable[[Any], QueryGrowth | None] = lambda _: None
    rotates_part: bool = False
    local_rotary_base: Callable[[Any], float | None] = lambda _: None
    unrotated_layers: Callable[[Any], frozenset[int]] = lambda _: frozenset()
    residual_scale: Callable[[Any], float] = lambda _: 1.0
    head_scale: Callable[[Any], float] = lambda _: 1.0
    mixture: Callable[[Any], MixtureOfExperts | None] = lambda _: None
    computes: Callable[[Mapping[str, Any]], bool] = lambda _: True

    @property
    def name(self) -> str:
        """Its name in the registry of families."""
        return self.model_type
