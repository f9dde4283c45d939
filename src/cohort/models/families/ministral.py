"""Ministral 8B: Mistral with a window in the layers that ``layer_types`` names sliding."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily, windows_by_layer_type

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="ministral",
    architecture="MinistralForCausalLM",
    windows=windows_by_layer_type,
)
