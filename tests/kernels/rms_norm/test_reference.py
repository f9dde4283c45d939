"""RMSNorm in plain torch has transformers' bits, for Llama's order of the weight and for Gemma's."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from cohort.kernels.rms_norm import rms_norm
from cohort.kernels.rms_norm.reference import add_rms_norm_backward, norm_with_inverse

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_given_inverse_changes_no_bit_of_the_gradient(dtype: torch.dtype) -> None:
    x, dy, dresidual = torch.randn(3, 40, 96, dtype=dtype)
    weight = torch.randn(96, dtype=dtype)
    y, inverse = norm_with_inverse(x, weight_D=weight, eps=EPS)
    assert torch.equal(y, rms_norm(x, weight_D=weight, eps=EPS))
    computed, given = (
        add_rms_norm_backward(
            dy, dresidual_TD=dresidual, new_residual_TD=x, weight_D=weight, eps=EPS, inverse_T1=inverse_T1
        )
        for inverse_T1 in (None, inverse)
    )
    assert torch.equal(computed, given)
