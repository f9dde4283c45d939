"""Gemma 2's attention as transformers computes it, but for its float32 softmax: a reference for float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.gemma2 import modeling_gemma2

__all__ = ["eager_attention_in_float64"]


def eager_attention_in_float64(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """Stand in for ``modeling_gemma2.eager_attention_forward``."""
    key, value = (modeling_gemma2.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
    scores = query @ key.transpose(2, 3) * options["scaling"]
    if options["softcap"] is not None:
        scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
    return ((scores + mask).softmax(-1) @ value).transpose(1, 2), None
