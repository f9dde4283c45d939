"""The product for Hopper with the LoRA term in its main loop: against the definition, isolation, equal bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton

from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.kernels.packed_linear.hopper import launch as hopper_launch
from cohort.kernels.packed_linear.hopper.launch import hopper_product, is_hopper
from tests.kernels.closeness import assert_near
from tests.kernels.packed_linear.cases import assert_equal_to_reference, make_case

INSIDE = TileChoice(term_forward=TermPlace.INSIDE, term_backward=TermPlace.INSIDE)
CASES: dict[str, dict[str, Any]] = {
    "ragged": {
        "lengths": [20, 0, 1, 117, 9, 300], "ranks": [8, 3, 1, 20, 64, 40], "widths": (520,), "in_features": 328,
    },
    "siblings": {"lengths": [33, 637], "ranks": [16, 5], "widths": (512, 256, 264), "in_features": 264},
    "two siblings": {"lengths": [5, 250, 130], "ranks": [64, 3, 16], "widths": (256, 1024), "in_features": 1024},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 200, "widths": (256,)},
    "wide ranks": {"lengths": [180, 21], "ranks": [64, 128], "widths": (256,), "in_features": 256},
    "one row": {"lengths": [1], "ranks": [16], "extra": 0, "widths": (256,), "in_features": 64},
    "whole tiles": {"lengths": [128, 256], "ranks": [16, 32], "extra": 0, "widths": (256, 256), "in_features": 512},
    "many slots a tile": {"lengths": [7] * 30, "ranks": [8, 24] * 15, "widths": (256,), "in_features": 256},
    "narrow": {"lengths": [20, 300, 7], "ranks": [8, 16, 3], "widths": (512,), "in_features": 256},
    "two narrow siblings": {"lengths": [20, 300, 7], "ranks": [8, 16, 3], "widths": (256, 512), "in_features": 256},
    "three wide siblings": {
        "lengths": [90, 300, 7], "ranks": [64, 16, 33], "widths": (256, 512, 256), "in_features": 256,
    },
    "a bank's stride": {"lengths": [20, 140], "ranks": [8, 24], "row_stride": 1024, "widths": (256,)},
}  # fmt: skip


@pytest.fixture(params=[torch.bfloat16, torch.float16])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """A dtype to test, however few tiles there are; skips where the product for Hopper cannot run."""
    if not torch.cuda.is_available() or not is_hopper(torch.device("cuda", 0)):
        pytest.skip("the product for Hopper needs a GPU of compute capability 9; Gluon has no interpreter")
    if not triton.__version__.startswith(hopper_launch.TRITON_VERSION):
        pytest.skip(
            f"the product for Hopper is for Triton {hopper_launch.TRITON_VERSION}*, this is {triton.__version__}"
        )
    monkeypatch.setattr(hopper_launch, "LEAST_FILL", 0.0)
    found: torch.dtype = request.param
    return found


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each launch of the product for Hopper was a forward one."""
    seen: list[bool] = []

    def counted(*operands: Any, **options: Any) -> None:
        seen.append(options["forward"])
        hopper_product(*operands, **options)

    monkeypatch.setattr(grouped, "hopper_product", counted)
    return seen


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_definition(dtype: torch.dtype, name: str, launches: list[bool]) -> None:
    case = make_case("cuda", dtype=dtype, **CASES[name])
    assert_equal_to_reference(case, case.run(INSIDE))
    assert launches == [True, False]


@pytest.mark.gpu
def test_repeats_are_equal_bit_by_bit(dtype: torch.dtype) -> None:
    case = make_case("cuda", dtype=dtype, **CASES["siblings"])
    first = case.run(INSIDE)
    for _ in range(3):
        again = case.run(INSIDE)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["a", "b", "x", "dy"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_slot(dtype: torch.dtype, where: str, value: float) -> None:
    options: dict[str, Any] = {"lengths": [20, 333, 40], "ranks": [8, 16, 24], "widths": (512, 256), "dtype": dtype}
    expected = make_case("cuda", in_features=264, **options).run(INSIDE)
    case = make_case("cuda", in_features=264, **options)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    poisoned = {"a": case.parts[0].a_RK[ranks, :3], "b": case.parts[0].b_RN[ranks, :3], "x": case.x[rows]}
    poisoned.get(where, case.dy[rows]).fill_(value)
    found = case.run(INSIDE)
    others = torch.ones(case.x.shape[0], dtype=torch.bool, device="cuda")
    others[rows] = False
    for name in ("y", "dx"):
        assert torch.equal(found[name][others], expected[name][others]), name
    own = found["y" if where in ("b", "x") else "dx"][rows]
    assert bool((~own.isfinite()).any(dim=1).all()), where


@pytest.mark.gpu
def test_rows_of_no_adapter_have_the_bits_of_the_product_alone(dtype: torch.dtype) -> None:
    case = make_case("cuda", lengths=[20, 5], ranks=[8, 16], extra=300, widths=(256,), in_features=256, dtype=dtype)
    found = case.run(INSIDE)
    alone = torch.empty_like(found["y"])
    hopper_product(case.x, case.weight, alone, parts=(), s_PTC=None, rank_pass=None, forward=True)
    assert torch.equal(found["y"][25:], alone[25:])
    assert_near(alone, case.x.double() @ case.weight.double().T)


@pytest.mark.gpu
def test_rank_rows_packed_more_tightly_than_a_bank_packs_them_take_another_path(
    dtype: torch.dtype, launches: list[bool]
) -> None:
    case = make_case("cuda", dtype=dtype, lengths=[30, 40], ranks=[16, 16], widths=(256,), in_features=256)
    tight = replace(case, slots=replace(case.slots, row_starts=(0, 8), ranks=(8, 8)))
    assert_equal_to_reference(tight, tight.run(INSIDE))
    assert launches == []
