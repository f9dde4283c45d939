"""PEFT models on quantised bases: the packed linear leaves outputs and gradients as they are."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from cohort.integrations.peft import accelerate
from cohort.integrations.peft_bases import QuantisedBases, frozen_product, is_quantised
from tests.training.small_models import VOCABULARY, save_qwen2


class EightBits(torch.nn.Linear):
    """A linear as HQQ has it: codes in ``W_q``, ``dequantize()``, and a product of its own."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)
        self.scale = linear.weight.detach().abs().amax() / 127
        self.W_q = (linear.weight.detach() / self.scale).round().to(torch.int8)
        # PEFT asks for its dtype and device
        self.weight = torch.nn.Parameter(linear.weight.detach().new_zeros(1), requires_grad=False)
        self.bias = linear.bias

    def dequantize(self) -> Tensor:
        return self.W_q.float() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.dequantize().to(x.dtype), self.bias)


def four_bits(linear: torch.nn.Linear) -> torch.nn.Module:
    bnb = importlib.import_module("bitsandbytes")
    found = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=linear.bias is not None, quant_type="nf4", compute_dtype=None
    )
    found.weight = bnb.nn.Params4bit(linear.weight.detach(), requires_grad=False, quant_type="nf4")
    found.bias = linear.bias
    converted: torch.nn.Module = found.to("cpu")
    return converted


def quantised_model(folder: Path, of: Callable[[torch.nn.Linear], torch.nn.Module]) -> Any:
    base = save_qwen2(folder)
    for module in list(base.model.layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, of(child))
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=6, lora_alpha=11, target_modules=names, lora_dropout=0.0))
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def losses_and_gradients(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    ids = torch.randint(0, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    return found.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(fast: Any, plain: Any, *, rtol: float) -> None:
    (logits, gradients), (expected, of_peft) = losses_and_gradients(fast), losses_and_gradients(plain)
    torch.testing.assert_close(logits, expected, rtol=rtol, atol=rtol)
    assert gradients.keys() == of_peft.keys()
    for name, gradient in of_peft.items():
        assert (gradients[name] - gradient).norm() <= rtol * gradient.norm(), name


def test_outputs_and_gradients_stay_on_a_quantised_base(tmp_path: Path) -> None:
    plain = quantised_model(tmp_path, EightBits)
    fast = copy.deepcopy(plain)
    assert accelerate(fast) == 14
    # the same products in float32, summed in another order
    assert_same(fast, plain, rtol=1e-5)
    ids = torch.randint(0, VOCABULARY, (3, 17))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = fast(ids).logits, plain(ids).logits
    assert found.dtype == expected.dtype
    assert (found - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.filterwarnings("ignore")
def test_outputs_and_gradients_stay_on_bitsandbytes_four_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    plain = quantised_model(tmp_path, four_bits)
    fast = copy.deepcopy(plain)
    accelerate(fast)
    assert_same(fast, plain, rtol=1e-4)


def test_siblings_with_quantised_weights_stand_side_by_side() -> None:
    torch.manual_seed(0)
    plain = [torch.nn.Linear(6, width, bias=width == 4) for width in (4, 2)]
    bases = [EightBits(own) for own in plain]
    assert [is_quantised(own) for own in (*plain, *bases)] == [False, False, True, True]
    product, x_TK, dy_TN = frozen_product(bases, dtype=torch.float32), torch.randn(5, 6), torch.randn(5, 6)
    assert isinstance(product, QuantisedBases)
    assert (product.in_features, product.out_features, product.num_bytes) == (6, 6, 36)
    torch.testing.assert_close(product.forward(x_TK), torch.cat([own(x_TK) for own in bases], dim=1))
    together = torch.cat([own.dequantize() for own in bases])
    torch.testing.assert_close(product.grad_input(dy_TN), dy_TN @ together)
