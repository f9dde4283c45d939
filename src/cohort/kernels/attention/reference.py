"""The definition: each sequence alone, softmax in float32 or better.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["packed_attention_reference"]


def packed_attention_reference(
    q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, sequence_offsets: Sequence[int], window: int | None = None
) -> Tensor:
    """Return causal attention within each sequence [T, H, E]; zeros in rows past ``sequence_offsets[-1]``."""
    groups = q_THE.shape[1] // k_TGE.shape[1]
    outputs = []
    for start, stop in pairwise(sequence_offsets):
        q, k, v = (x[start:stop].transpose(0, 1) for x in (q_THE, k_TGE, v_TGE))
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        scores = (q @ k.transpose(1, 2)) / q.shape[2] ** 0.5
        places = torch.arange(stop - start, device=q.device)
        distance = places[:, None] - places[None, :]
        visible = (distance >= 0) & (distance < (window or stop - start + 1))
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        outputs.append((weights @ v).transpose(0, 1))
    rest = q_THE.shape[0] - sequence_offsets[-1]
    return torch.cat([*outputs, q_THE.new_zeros(rest, *q_THE.shape[1:])])
