"""Factors that PiSSA and OLoRA begin with are those of PEFT, and their product is a part of the weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from cohort.adapters.variants.pissa_olora import principal_factors


class OneLinear(torch.nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(num_in, num_out)


@pytest.mark.parametrize("method", ["pissa", "pissa_niter_3", "olora"])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (31, 31)])
def test_they_are_peft_s(method: Any, shape: tuple[int, int]) -> None:
    model = OneLinear(*shape)
    weight = model.linear.weight.detach().clone()
    config = LoraConfig(r=6, lora_alpha=9, target_modules=["linear"], init_lora_weights=method)
    layer: Any = get_peft_model(model, config).base_model.model.linear
    if method != "olora":
        # again, from a known state of the global generator, which PEFT's random projection comes from
        layer.base_layer.weight.data = weight.clone()
        torch.manual_seed(11)
        layer.pissa_init("default", method)
    before = torch.get_rng_state()
    found = principal_factors(weight, method, r=6, scale=1.5, seed=11)
    assert torch.equal(torch.get_rng_state(), before), "the global generator stays"
    torch.testing.assert_close(found.a_rK, layer.lora_A["default"].weight.detach())
    torch.testing.assert_close(found.b_Nr, layer.lora_B["default"].weight.detach())
    torch.testing.assert_close(weight - 1.5 * found.b_Nr @ found.a_rK, layer.base_layer.weight)


def test_a_rank_above_that_of_the_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="r 5 is more than the 4 singular values"):
        principal_factors(torch.ones(4, 9), "pissa", r=5, scale=1.0, seed=0)
