"""Linears that a model calls with one input are one call, and drop what the formula of dropout says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.integrations import peft_layers
from cohort.integrations.peft import accelerate
from cohort.integrations.peft_one_adapter import one_adapter
from cohort.kernels.dropout import dropout_rows, module_key
from tests.integrations.test_peft import losses_and_gradients, peft_model


def test_siblings_are_one_call_and_keep_their_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = peft_model(tmp_path)
    fast = copy.deepcopy(plain)
    accelerate(fast)
    calls: list[int] = []
    apply = one_adapter

    def counted(x_TK: torch.Tensor, **linears: Any) -> tuple[torch.Tensor, ...]:
        calls.append(len(linears["products"]))
        return apply(x_TK, **linears)

    monkeypatch.setattr(peft_layers, "one_adapter", counted)
    losses_and_gradients(fast)
    assert calls == [3, 1, 2, 1] * 2
    state, other = fast.state_dict(), plain.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in other.items())
    # a model that moved, as to another device, finds its weights again
    moved = fast.double()
    torch.testing.assert_close(
        losses_and_gradients(moved)[0].float(), losses_and_gradients(plain)[0], rtol=1e-5, atol=1e-5
    )


def test_dropout_is_the_formula_s_with_keys_of_torch_s_generator(tmp_path: Path) -> None:
    model = peft_model(tmp_path, lora_dropout=0.3)
    plain = copy.deepcopy(model)
    accelerate(model)
    path = "base_model.model.model.layers.0.mlp.down_proj"
    layer, own = model.get_submodule(path), plain.get_submodule(path)
    x = torch.randn(2, 5, 120)
    torch.manual_seed(4)
    found = layer(x)
    torch.manual_seed(4)
    keys = torch.randint(0, 1 << 32, (10,))
    dropped = dropout_rows(x.reshape(10, -1), keys, module_key=module_key(path), probability=0.3).reshape(x.shape)
    expected = own.base_layer(x) + own.lora_B["default"](own.lora_A["default"](dropped)) * own.scaling["default"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    model.eval(), plain.eval()
    torch.testing.assert_close(losses_and_gradients(model)[0], losses_and_gradients(plain)[0], rtol=1e-5, atol=1e-5)
