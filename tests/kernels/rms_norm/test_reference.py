"""RMSNorm in plain torch has transformers' bits, for Llama's order of the weight and for Gemma's."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from cohort.kernels.rms_norm import rms_norm

EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_bit_equal_to_transformers(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(96, EPS).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x, dy = torch.randn(2, 40, 96, dtype=dtype)
    x.requires_grad_()
    expected, found = norm(x), rms_norm(x, weight_D=norm.weight.detach(), eps=EPS)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(y, x, dy)[0] for y in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_float32_weight_is_bit_equal_to_gemma(dtype: torch.dtype) -> None:
    norm = Gemma2RMSNorm(96, EPS).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x, dy = torch.randn(2, 40, 96, dtype=dtype)
    x.requires_grad_()
    expected, found = norm(x), rms_norm(x, weight_D=1.0 + norm.weight.detach().float(), eps=EPS)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(y, x, dy)[0] for y in (found, expected)))
