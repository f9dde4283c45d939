"""Phi-3 and Phi-4: q, k and v in one linear, gate and up in another, and in Phi-4-mini a part of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.models.families.family import ModelFamily

__all__ = ["FAMILY"]


def _rotates_alike(raw: Mapping[str, Any]) -> bool:
    """Return whether the frequencies are the same at every length; those of ``longrope`` are not."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return str(scaling.get("rope_type", scaling.get("type", "default"))) not in ("longrope", "su")


FAMILY = ModelFamily(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    has_fused_qkv=True,
    has_fused_gate_up=True,
    rotates_part=True,
    windows=lambda settings: (settings.sliding_window,) * int(settings.num_hidden_layers),
    computes=_rotates_alike,
    refused=("resid_pdrop", "embd_pdrop"),
)
