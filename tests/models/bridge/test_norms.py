"""Norms that are fused, and modules that are left as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from cohort.models.attention import PackedAttention
from cohort.models.bridge.norms import fuse_norms
from cohort.models.bridge.pass_state import BridgedPass, during

PASS = BridgedPass(attention=PackedAttention((0, 3)))


class Swapped(LlamaRMSNorm):
    """A norm that does something else behind."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        found: Tensor = super().forward(hidden_states)
        return found.roll(1, dims=-1)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_gives_what_it_gave_with_its_gradient(kind: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, x = kind(32).to(dtype).requires_grad_(False), torch.randn(3, 32, dtype=dtype, requires_grad=True)
    for weight in norm.parameters():
        nn.init.normal_(weight, mean=0.5)
    expected = norm(x)
    (own,) = torch.autograd.grad(expected.square().sum(), x)
    assert fuse_norms(nn.ModuleList([norm])) == 1
    assert torch.equal(norm(x), expected)
    with during(PASS):
        found = norm(x)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
    assert type(found.grad_fn).__name__ == "_RmsNormFunctionBackward"
    share = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for one, other in ((found, expected), (gradient, own)):
        assert (one - other).norm() <= share * other.norm()


@pytest.mark.parametrize("module", [Swapped(32), nn.LayerNorm(32), nn.GroupNorm(1, 32), nn.Linear(32, 32)])
def test_what_computes_something_else_is_left_alone(module: nn.Module) -> None:
    assert fuse_norms(nn.ModuleList([module])) == 0
