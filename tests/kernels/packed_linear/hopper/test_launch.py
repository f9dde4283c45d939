"""When the product for Hopper takes the LoRA term inside, and the launches around it, with plain torch in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.kernels.packed_linear import LaunchTables, LoraPart
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.kernels.packed_linear.hopper import launch as hopper_launch
from cohort.kernels.packed_linear.hopper.launch import filled, tile_strips, wasted_share
from tests.kernels.closeness import low_precision
from tests.kernels.packed_linear.cases import SMALL, Case, assert_equal_to_reference, make_case

INSIDE = replace(SMALL, term_forward=TermPlace.INSIDE, term_backward=TermPlace.INSIDE)
CASES: dict[str, dict[str, Any]] = {
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


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product was a forward one; it is computed by plain torch, on any device."""
    seen: list[bool] = []

    def product(
        x_TK: Tensor, weight_NK: Tensor, y_TN: Tensor, *, parts: Sequence[LoraPart], s_PTC: Tensor, rank_pass: Any,
        forward: bool,
    ) -> None:  # fmt: skip
        seen.append(forward)
        y_TN.copy_(x_TK @ (weight_NK.T if forward else weight_NK))
        count, *entries = rank_pass.slots.tolist()
        for start, stop, rank_row, rank, bits, *_ in entries[: count[0]]:
            scale = torch.tensor([bits], dtype=torch.int32).view(torch.float32).item()
            for part, s_TC in zip(parts, s_PTC, strict=True):
                factor = (part.b_RN if forward else part.a_RK)[rank_row : rank_row + rank]
                columns = part.columns if forward else slice(None)
                term = s_TC[start:stop, :rank].float() @ factor.float()
                # dS has its scale already
                y_TN[start:stop, columns] += (scale * term if forward else term).to(y_TN.dtype)

    monkeypatch.setattr(grouped, "hopper_product", product)
    monkeypatch.setattr(hopper_launch, "is_hopper", lambda device: True)
    monkeypatch.setattr(hopper_launch, "LEAST_FILL", 0.0)
    monkeypatch.setattr(hopper_launch, "COLUMNS", 8)
    monkeypatch.setattr("triton.__version__", hopper_launch.TRITON_VERSION + "0")
    return seen


@pytest.mark.parametrize("name", CASES)
def test_the_launches_around_the_product_equal_the_definition(
    triton_device: str, name: str, launches: list[bool]
) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **CASES[name])
    assert_equal_to_reference(case, case.run(replace(INSIDE, ds_apart=name in ("siblings", "ragged"))))
    # with dropout the term of dX is masked feature by feature: only the forward product can take it inside
    assert launches == ([True] if name == "dropout" else [True, False])


def _takes(case: Case, tables: LaunchTables | None = None) -> bool:
    return hopper_launch.hopper_takes(
        case.x, weight_NK=case.weight, parts=case.parts, tables=tables or case.tables(), width=case.weight.shape[0]
    )


def test_it_takes_what_a_bank_and_a_stream_give_it(launches: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("cpu", lengths=[30, 40], ranks=[16, 16], dtype=torch.float16)
    assert _takes(case)
    assert not _takes(case, case.tables(fixed_launch=True)), "a graph's next pack may use other rank rows"
    tight = replace(case, slots=replace(case.slots, row_starts=(0, 8), ranks=(8, 8)))
    assert not _takes(tight), "it reads 16 rank rows at a time"
    assert not _takes(make_case("cpu", lengths=[30, 40], ranks=[16, 16])), "16-bit operands alone"
    assert not _takes(make_case("cpu", lengths=[30], ranks=[16], widths=(12, 24), dtype=torch.float16))
    monkeypatch.setattr(hopper_launch, "LEAST_FILL", 1.1)
    assert not _takes(case), "too few tiles for the card"


@pytest.mark.parametrize(
    ("hopper", "version", "words"),
    [
        (True, "3.6.0", "Hopper's own, where"),
        (True, "3.9.0", "none: Hopper's own has run with Triton 3.6.* alone, this is 3.9.0"),
        (False, "3.6.0", "none: only Hopper has such a product"),
    ],
)
def test_which_product_takes_the_term_inside_is_said(
    monkeypatch: pytest.MonkeyPatch, hopper: bool, version: str, words: str
) -> None:
    monkeypatch.setattr(hopper_launch, "is_hopper", lambda device: hopper)
    monkeypatch.setattr("triton.__version__", version)
    assert words in hopper_launch.describe_inside(torch.device("cuda"))


def test_few_tiles_in_the_last_wave_fill_the_card_less() -> None:
    assert filled(8192, 4096, programs=132) == pytest.approx(1024 / (8 * 132))
    assert filled(8448 + 1, 4096, programs=132) == pytest.approx(67 * 16 / (9 * 132))
    assert filled(0, 4096, programs=132) == 0


@pytest.mark.parametrize("num_rows", [1, 128, 1000, 1024, 1152, 1280, 5120, 8192])
@pytest.mark.parametrize("width", [64, 4096, 6144, 14336, 28672, 1000])
def test_strips_cover_every_column_once_and_are_never_slower_than_one_width(num_rows: int, width: int) -> None:
    strips = tile_strips(num_rows, width, programs=132)
    assert [own.start for own, _ in strips] == [0, *(own.stop for own, _ in strips[:-1])]
    assert strips[-1][0].stop == width
    assert all(own.start % 256 == 0 and columns in (64, 128, 256) for own, columns in strips)
    tiles = -(-num_rows // 128) * -(-width // 256)
    best = wasted_share(num_rows, width, programs=132)
    assert best <= -(-tiles // 132) / (-(-num_rows // 128) * width / 256 / 132) - 1.0 + 1e-9
