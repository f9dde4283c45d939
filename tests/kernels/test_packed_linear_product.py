"""The frozen product with the LoRA term in its tiles, against the float64 definition: odd tiles, isolation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.kernels.packed_linear.hopper.launch import is_hopper
from cohort.kernels.packed_linear.launch import product as product_launch
from tests.kernels.closeness import low_precision
from tests.kernels.packed_linear_cases import SMALL, assert_equal_to_reference, make_case

INSIDE = replace(
    SMALL, term_forward=TermPlace.INSIDE, term_backward=TermPlace.INSIDE, product_columns=32, product_inner=16
)
INSIDE_CASES: dict[str, dict[str, Any]] = {
    "ragged": {"lengths": [20, 0, 1, 117, 9], "ranks": [8, 3, 1, 20, 64]},
    "siblings": {"lengths": [33, 137], "ranks": [16, 5], "widths": (32, 64, 24)},
    "columns end within a tile": {"lengths": [9, 40], "ranks": [4, 8], "widths": (32, 40), "in_features": 56},
    "wide ranks": {"lengths": [18, 21], "ranks": [64, 128]},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 20},
    "no filler": {"lengths": [128, 16], "ranks": [16, 16], "extra": 0},
    "free slots": {"lengths": [0, 12, 0], "ranks": [0, 8, 0]},
    "dropout": {"lengths": [20, 35, 4], "ranks": [8, 16, 40], "dropouts": [0.1, 0.0, 0.5]},
    "a bank's stride": {"lengths": [20, 40], "ranks": [8, 24], "row_stride": 112, "widths": (32, 16)},
}


@pytest.fixture(autouse=True)
def _not_on_hopper(triton_device: str) -> None:
    if is_hopper(torch.device(triton_device)):
        pytest.skip("Hopper has a product of its own: test_packed_linear_hopper.py")


@pytest.mark.parametrize("name", INSIDE_CASES)
def test_the_term_inside_the_product_equals_the_definition(
    triton_device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **INSIDE_CASES[name])
    calls: list[bool] = []

    def counted(*operands: Any, **options: Any) -> None:
        calls.append(options["forward"])
        product_launch.product(*operands, **options)

    monkeypatch.setattr(grouped, "product", counted)
    if name == "no row of any adapter":
        case.dy[-1] = 0  # a row whose result is exactly the product's
    assert_equal_to_reference(case, case.run(replace(INSIDE, ds_apart=name in ("siblings", "ragged"))))
    # with dropout the term of dX is masked feature by feature: only the forward product can take it inside
    assert calls == ([True] if name == "dropout" else [True, False])


@pytest.mark.parametrize("where", ["a", "b", "x", "dy"])
def test_a_nan_stays_in_its_slot_inside_the_product(triton_device: str, where: str) -> None:
    options: dict[str, Any] = {
        "lengths": [20, 13, 40], "ranks": [8, 16, 24], "widths": (32, 24), "dtype": low_precision(triton_device),
    }  # fmt: skip
    expected = make_case(triton_device, **options).run(INSIDE)
    case = make_case(triton_device, **options)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    poisoned = {"a": case.parts[0].a_RK[ranks, :3], "b": case.parts[0].b_RN[ranks, :3], "x": case.x[rows]}
    poisoned.get(where, case.dy[rows]).fill_(torch.nan)
    found = case.run(INSIDE)
    others = torch.ones(case.x.shape[0], dtype=torch.bool, device=case.x.device)
    others[rows] = False
    for name in ("y", "dx"):
        assert torch.equal(found[name][others], expected[name][others]), name
    # what is not finite stays visible in its own slot
    own = found["y" if where in ("b", "x") else "dx"][rows]
    assert bool(own.isnan().any(dim=1).all()), where


def test_rows_of_no_adapter_have_the_bits_of_the_product_alone(triton_device: str) -> None:
    options: dict[str, Any] = {"dtype": low_precision(triton_device), "extra": 40}
    case = make_case(triton_device, lengths=[20, 5], ranks=[8, 16], **options)
    found = case.run(INSIDE)
    for part in case.parts:
        part.a_RK.zero_()
        part.b_RN.zero_()
    without = case.run(INSIDE)
    assert torch.equal(found["y"][25:], without["y"][25:])
    assert torch.equal(found["dx"][25:], without["dx"][25:])
