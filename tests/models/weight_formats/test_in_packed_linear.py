"""Every format under the grouped kernels: the LoRA term is added to the format's own products, whatever they are."""

from __future__ import annotations

import pytest
import torch

from cohort.models.weight_formats import WEIGHT_FORMATS
from tests.kernels.closeness import assert_near
from tests.kernels.conftest import triton_device
from tests.kernels.packed_linear import cases
from tests.kernels.packed_linear.cases import ROUNDINGS, make_case

__all__ = ["triton_device"]

FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_term_is_added_to_the_formats_products(
    triton_device: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bias: bool,
) -> None:
    lengths = [33, 0, 17]
    case = make_case(triton_device, lengths=lengths, ranks=[16, 4, 5], widths=(24, 16, 40), in_features=48, bias=bias)
    frozen = WEIGHT_FORMATS[name].freeze(case.weight, case.bias)
    monkeypatch.setattr(cases, "FrozenLinear", lambda *_: frozen)
    found, expected = case.run(), case.reference()
    weight, exact_bias = case.weight.double(), 0.0 if case.bias is None else case.bias.double()
    expected["y"] += frozen.forward(case.x).double() - (case.x.double() @ weight.t() + exact_bias)
    expected["dx"] += frozen.grad_input(case.dy).double() - case.dy.double() @ weight
    for key, own in expected.items():
        assert_near(found[key], own, roundings=ROUNDINGS)
    assert torch.isfinite(found["y"]).all()
