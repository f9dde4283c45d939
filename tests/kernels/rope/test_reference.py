"""The rotation in plain torch has transformers' bits, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from cohort.kernels.rope import apply_rope


def _angles(num_tokens: int, width: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    half = torch.randn(num_tokens, width // 2, device=device) * 3
    angles = torch.cat((half, half), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_bit_equal_to_transformers(dtype: torch.dtype) -> None:
    q, k = (
        torch.randn(20, 4, 16, dtype=dtype, requires_grad=True),
        torch.randn(20, 2, 16, dtype=dtype, requires_grad=True),
    )
    cos, sin = _angles(20, 16, dtype)
    found = apply_rope(q, k, cos_TE=cos, sin_TE=sin)
    rotated = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos[None], sin[None])
    expected = [x[0].transpose(0, 1) for x in rotated]
    upstream = [torch.randn_like(x) for x in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    gradients = (torch.autograd.grad(outputs, (q, k), upstream) for outputs in (found, expected))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
