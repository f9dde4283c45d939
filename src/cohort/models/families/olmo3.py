"""OLMo 3: as OLMo 2, with a window in three layers of four and frequencies of their own in the others."""

from __future__ import annotations

from cohort.models.families.family import (
    ModelFamily,
    rotates_windows_plainly,
    windowed_rotary_base,
    windows_by_layer_type,
)
from cohort.models.families.olmo2 import NORMS_AFTER

__all__ = ["FAMILY"]

FAMILY = ModelFamily(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    qk_norm=True,
    norms_all_heads=True,
    norms=NORMS_AFTER,
    windows=windows_by_layer_type,
    local_rotary_base=windowed_rotary_base,
    computes=rotates_windows_plainly,
)
