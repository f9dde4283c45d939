"""What one family of checkpoints is called and where it differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Family", "no_windows", "windows_by_layer_type"]


def no_windows(settings: Any) -> tuple[int | None, ...]:
    """Every layer sees the whole sequence."""
    return (None,) * int(settings.num_hidden_layers)


def windows_by_layer_type(settings: Any) -> tuple[int | None, ...]:
    """Qwen's rule: with ``use_sliding_window`` some layers see ``sliding_window`` positions.

    Those that ``layer_types`` names, else those from ``max_window_layers`` on.
    """
    num_layers = int(settings.num_hidden_layers)
    window = settings.sliding_window if settings.use_sliding_window else None
    kinds = getattr(settings, "layer_types", None) or [
        "sliding_attention" if layer >= settings.max_window_layers else "full_attention" for layer in range(num_layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family. ``settings`` below is the checkpoint's transformers configuration.

    Attributes:
        model_type: As ``config.json`` has it.
        architecture: Class name of its causal language model.
        examples: Models of the family, for messages.
        qkv_bias: Whether q, k and v add a bias.
        output_bias: Whether o adds a bias.
        mlp_bias: Whether gate, up and down add a bias.
        qk_norm: Whether queries and keys are normalised per head.
        windows: Attention window by layer.
    """

    model_type: str
    architecture: str
    examples: str
    qkv_bias: Callable[[Any], bool]
    output_bias: Callable[[Any], bool]
    mlp_bias: Callable[[Any], bool]
    qk_norm: bool
    windows: Callable[[Any], tuple[int | None, ...]]
