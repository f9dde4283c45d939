"""Codes of a gradient that two launches write in passing: those of a pass of its own, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import Fp8Rows, quantise_rows
from cohort.kernels.packed_mlp import triton as fused
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import low_precision
from tests.kernels.packed_mlp.cases import SMALL, Case, make_case

CASES: dict[str, dict[str, Any]] = {
    "ragged": {"lengths": [17, 0, 1], "ranks": [8, 3, 20]},
    "dropout, two classes": {"lengths": [17, 4], "ranks": [8, 40], "dropouts": [0.1, 0.5]},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 20},
    "even": {"lengths": [16, 16], "ranks": [16, 5], "width": 32, "extra": 0},
}


@pytest.fixture(autouse=True)
def _in_any_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LEAST_ROUNDED_ROWS", 0)


class Coded(FrozenLinear):
    """A plain product that asks for codes and keeps what it got."""

    can_accumulate = False
    plain_weight_NK = None

    def __init__(self, weight_NK: Tensor, factors_N: Tensor) -> None:
        super().__init__(weight_NK)
        self.factors_N = factors_N
        self.gradient: Tensor | None = None
        self.codes: Fp8Rows | None = None

    def gradient_factors(self, like: Tensor) -> Tensor:
        assert like.shape[1] == self.factors_N.shape[0]
        return self.factors_N

    def grad_input(self, dy_TN: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        self.gradient, self.codes = dy_TN, codes
        return super().grad_input(dy_TN)


def run(case: Case) -> tuple[Coded, dict[str, Tensor]]:
    """Return the product with the gradient of gate and up and its codes, and every gradient."""
    generator = torch.Generator().manual_seed(3)
    factors_N = torch.rand(case.gate_up.shape[0], generator=generator).to(case.x.device) + 0.1
    product = Coded(case.gate_up, factors_N)
    arguments: dict[str, Any] = {
        "gate_up": product, "gate_up_parts": case.parts[:2], "down": FrozenLinear(case.down),
        "down_part": case.parts[2], "tables": case.tables(), "row_keys_T": case.row_keys, "tiles": SMALL,
    }  # fmt: skip
    y, (g, s, s_down) = fused.mlp_forward(case.x, **arguments)
    dx = fused.mlp_backward(case.dy, x_TD=case.x, g_TF=g, s_PTC=s, s_down_PTC=s_down, **arguments)
    assert dx is not None
    return product, {"y": y, "dx": dx} | case.sinks()


def assert_codes(product: Coded) -> tuple[Tensor, Tensor]:
    """Check codes and scales against a pass over the gradient as it was stored.

    By the same backend: Triton's interpreter rounds to e4m3 wrongly.
    """
    assert product.gradient is not None
    assert product.codes is not None
    expected = quantise_rows(product.gradient, factors_K=product.factors_N, backend=Backend.TRITON)
    assert torch.equal(product.codes.scales_T, expected.scales_T)
    assert torch.equal(product.codes.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))
    return expected.codes_TK, expected.scales_T


@pytest.mark.parametrize("name", CASES)
def test_codes_are_those_of_a_pass_of_their_own(triton_device: str, name: str) -> None:
    dtype = torch.float32 if name == "ragged" else low_precision(triton_device)
    case = make_case(triton_device, dtype=dtype, **CASES[name])
    product, found = run(case)
    assert_codes(product)
    # and nothing else changes a bit
    fresh = make_case(triton_device, dtype=dtype, **CASES[name])
    plain = Coded(fresh.gate_up, product.factors_N)
    plain.gradient_factors = lambda _: None  # type: ignore
    for key, value in _without_codes(fresh, plain).items():
        assert torch.equal(found[key], value), key


def _without_codes(case: Case, product: Coded) -> dict[str, Tensor]:
    arguments: dict[str, Any] = {
        "gate_up": product, "gate_up_parts": case.parts[:2], "down": FrozenLinear(case.down),
        "down_part": case.parts[2], "tables": case.tables(), "row_keys_T": case.row_keys, "tiles": SMALL,
    }  # fmt: skip
    y, (g, s, s_down) = fused.mlp_forward(case.x, **arguments)
    dx = fused.mlp_backward(case.dy, x_TD=case.x, g_TF=g, s_PTC=s, s_down_PTC=s_down, **arguments)
    assert product.codes is None
    assert dx is not None
    return {"y": y, "dx": dx} | case.sinks()


def test_few_rows_are_rounded_by_a_pass_of_their_own(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LEAST_ROUNDED_ROWS", 9)
    product, _ = run(make_case(triton_device, lengths=[8], ranks=[4], extra=0))
    assert product.codes is None
    product, _ = run(make_case(triton_device, lengths=[9], ranks=[4], extra=0))
    assert_codes(product)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of the interpreter's largest
def test_rows_of_zeros_outliers_and_poison_are_rounded_alone(triton_device: str) -> None:
    options: dict[str, Any] = {"lengths": [9, 4], "ranks": [8, 20], "extra": 1, "dtype": low_precision(triton_device)}
    case = make_case(triton_device, **options)
    case.dy[3] = 0.0
    # far beyond e4m3's largest, 448, and far below its least
    case.dy[5] *= 3000.0
    case.dy[6] *= 1e-4
    product, _ = run(case)
    codes, scales = assert_codes(product)
    assert not bool(codes[3].float().any())
    assert float(scales[3]) == pytest.approx(1e-12 / 448)
    assert float(codes[5].float().abs().max()) == 448.0
    poisoned = make_case(triton_device, **options)
    poisoned.dy[:] = case.dy
    poisoned.dy[7] = torch.nan
    product, _ = run(poisoned)
    assert product.codes is not None
    others = torch.arange(case.dy.shape[0]) != 7
    assert torch.equal(product.codes.codes_TK.view(torch.uint8)[others], codes.view(torch.uint8)[others])
    assert torch.equal(product.codes.scales_T[others], scales[others])
    if triton_device == "cuda":  # the interpreter makes 384 of a NaN
        assert bool(product.codes.codes_TK[7].float().isnan().any())
