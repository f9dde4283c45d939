"""The augmented product against the float64 definition: odd ranks and segments, isolation, the rule that chooses it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.core.errors import ShapeError
from cohort.kernels.attention import AttentionTiles, packed_attention
from cohort.kernels.backend import Backend
from cohort.kernels.packed_linear import LaunchTables, PaddedRows, packed_linear
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import low_precision
from tests.kernels.packed_linear.cases import ROUNDINGS, SMALL, Case, assert_equal_to_reference, make_case, sink_of

AUGMENTED = replace(SMALL, term_forward=TermPlace.AUGMENTED, augmented_columns=128, augmented_rows=1)
CASES: dict[str, dict[str, Any]] = {
    "ragged": {"lengths": [20, 0, 1, 37], "ranks": [8, 3, 1, 20]},
    "one adapter": {"lengths": [33], "ranks": [64], "widths": (40,)},
    "several blocks of output columns": {"lengths": [9, 24], "ranks": [5, 16], "widths": (300,)},
    "the widest rank": {"lengths": [18], "ranks": [128], "in_features": 48},
    "dropout": {"lengths": [20, 35, 4], "ranks": [8, 16, 40], "dropouts": [0.1, 0.0, 0.5]},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 20},
    "no filler": {"lengths": [16, 16], "ranks": [16, 16], "extra": 0},
    "free slots": {"lengths": [0, 12, 0], "ranks": [0, 8, 0]},
    "bias": {"lengths": [20, 5], "ranks": [8, 16], "bias": True},
    "a bank's stride": {"lengths": [20, 40], "ranks": [8, 24], "row_stride": 112},
}


def roomy_linear(case: Case, *, spare: int = 128) -> FrozenLinear:
    """The case's frozen linear with columns to spare, which hold NaN until someone fills them."""
    num_out, num_in = case.weight.shape
    wide = torch.full((num_out, num_in + spare), torch.nan, dtype=case.weight.dtype, device=case.weight.device)
    wide[:, :num_in] = case.weight
    return FrozenLinear(wide, case.bias, in_features=num_in)


def room_of(case: Case, frozen: FrozenLinear, tables: LaunchTables, tiles: TileChoice = AUGMENTED) -> PaddedRows | None:
    """X in rows with room, which holds NaN until someone fills it."""
    room = grouped.room_for(case.x, frozen=frozen, parts=case.parts, tables=tables, tiles=tiles)
    if room is not None:
        room.buffer_TX.fill_(torch.nan)
        room.rows_TK.copy_(case.x)
    return room


def run(case: Case, tiles: TileChoice = AUGMENTED) -> dict[str, Tensor]:
    frozen, tables = roomy_linear(case), case.tables(tiles)
    room = room_of(case, frozen, tables, tiles)
    assert room is not None
    part = case.parts[0]
    for sink in (part.grad_a_RK, part.grad_b_RN):
        sink_of(sink).zero_()
    arguments: dict[str, Any] = {
        "frozen": frozen, "parts": case.parts, "tables": tables, "row_keys_T": case.row_keys, "tiles": tiles,
    }  # fmt: skip
    y, s = grouped.grouped_forward(room.rows_TK, room=room, **arguments)
    dx = grouped.grouped_backward(case.dy, x_TK=room.rows_TK, s_PTC=s, **arguments)
    assert dx is not None
    return {"y": y, "dx": dx, "da0": sink_of(part.grad_a_RK).clone(), "db0": sink_of(part.grad_b_RN).clone()}


@pytest.mark.parametrize("name", CASES)
def test_float32_equals_the_definition(triton_device: str, name: str) -> None:
    case = make_case(triton_device, **CASES[name])
    assert_equal_to_reference(case, run(case))


@pytest.mark.parametrize("name", ["ragged", "dropout"])
def test_sixteen_bits_equal_the_definition_but_for_roundings(triton_device: str, name: str) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **CASES[name])
    # one more rounding than apart: the scale enters S before its 16 bits
    assert_equal_to_reference(case, run(case), roundings=ROUNDINGS + 1)


def test_a_split_shrink_spreads_its_sum(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["ragged"])
    assert_equal_to_reference(case, run(case, replace(AUGMENTED, shrink_splits=3)))


THREE: dict[str, Any] = {"lengths": [20, 13, 30], "ranks": [8, 16, 24], "widths": (200,)}


@functools.cache
def _three(device: str) -> dict[str, Tensor]:
    """What three finite slots give: one run for all that is compared with it."""
    return run(make_case(device, dtype=low_precision(device), **THREE))


# NumPy, with which the interpreter computes, remarks on inf x 0
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["a", "b", "one entry of b", "x", "dy"])
def test_what_is_not_finite_stays_in_its_slot(triton_device: str, where: str, value: float) -> None:
    expected = _three(triton_device)
    case = make_case(triton_device, dtype=low_precision(triton_device), **THREE)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    part = case.parts[0]
    poisoned = {
        "a": part.a_RK[ranks], "b": part.b_RN[ranks], "one entry of b": part.b_RN[ranks.start + 5, 150:151],
        "x": case.x[rows], "dy": case.dy[rows],
    }  # fmt: skip
    poisoned[where].fill_(value)
    found = run(case)
    others = torch.ones(case.x.shape[0], dtype=torch.bool, device=case.x.device)
    others[rows] = False
    other_ranks = torch.ones(part.a_RK.shape[0], dtype=torch.bool, device=case.x.device)
    other_ranks[ranks] = False
    for name, tensor in found.items():
        mask = others if name in ("y", "dx") else other_ranks
        assert torch.equal(tensor[mask], expected[name][mask]), name
    # in its own slot it stays visible: the loss of every row says so at once
    if where != "dy":
        assert not bool(found["y"][rows].isfinite().all(dim=1).any())


def test_rows_of_no_adapter_have_the_bits_of_the_product_alone(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 5], ranks=[8, 16], extra=40, dtype=low_precision(triton_device))
    found = run(case)
    for part in case.parts:
        part.a_RK.zero_()
        part.b_RN.zero_()
    assert torch.equal(found["y"][25:], run(case)["y"][25:])


def test_a_repeat_has_the_same_bits(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["dropout"])
    first, second = run(case), run(case)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_op_takes_rows_with_room(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_tiles", lambda *_, **__: AUGMENTED)
    case = make_case(triton_device, **CASES["ragged"])
    frozen, tables = roomy_linear(case), case.tables()
    room = room_of(case, frozen, tables)
    assert room is not None
    arguments: dict[str, Any] = {
        "frozen": frozen, "parts": case.parts, "slots": case.slots, "segments": case.segments, "tables": tables,
        "backend": Backend.TRITON, "room": room,
    }  # fmt: skip
    x = room.rows_TK.detach().requires_grad_()
    y = packed_linear(x, **arguments)
    y.backward(case.dy)
    part = case.parts[0]
    assert x.grad is not None
    found = {"y": y.detach(), "dx": x.grad, "da0": sink_of(part.grad_a_RK), "db0": sink_of(part.grad_b_RN)}
    assert_equal_to_reference(case, found)
    with pytest.raises(ShapeError, match="not the first 40 columns of its room"):
        packed_linear(case.x, **arguments)


@pytest.mark.parametrize("lengths", [(40, 1, 30), (0, 5)], ids=str)
def test_attention_writes_into_the_room(triton_device: str, lengths: tuple[int, ...]) -> None:
    heads, width, num_rows = 2, 16, sum(lengths) + 3
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(num_rows, heads, width, device=triton_device) for _ in range(4))
    tiles = AttentionTiles((0, *torch.tensor(lengths).cumsum(0).tolist()), device=triton_device)
    outcomes = []
    buffer_TX = torch.full((num_rows, heads * width + 48), torch.nan, device=triton_device)
    for room in (None, PaddedRows(buffer_TX=buffer_TX, width=heads * width, num_columns=16)):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        o = packed_attention(*leaves, tiles=tiles, room=room)
        if room is not None:
            assert room.holds(o.flatten(1))
            assert bool(buffer_TX[:, heads * width :].isnan().all())
        o.backward(do)
        outcomes.append([o.detach(), *(leaf.grad for leaf in leaves)])
    for without, inside in zip(*outcomes, strict=True):
        assert without is not None
        assert inside is not None
        assert torch.equal(without, inside)


def test_the_rule() -> None:
    case = make_case("cpu", lengths=[20, 5], ranks=[8, 20])
    frozen, tables = roomy_linear(case), case.tables()

    def columns(tiles: TileChoice = AUGMENTED, **changes: Any) -> int:
        own: dict[str, Any] = {"frozen": frozen, "parts": case.parts, "tables": tables} | changes
        room = grouped.room_for(case.x, tiles=tiles, **own)
        return 0 if room is None else room.num_columns

    # 8 ranks take 16 rank rows of the bank, 20 take 32
    assert columns() == 48
    assert columns(replace(AUGMENTED, term_forward=TermPlace.BEFORE)) == 0
    assert columns(replace(AUGMENTED, augmented_rows=29)) == 0
    assert columns(replace(AUGMENTED, augmented_columns=32)) == 0
    assert columns(frozen=roomy_linear(case, spare=32)) == 0
    assert columns(frozen=FrozenLinear(case.weight)) == 0
    assert columns(tables=case.tables(fixed_launch=True)) == 0
    siblings = make_case("cpu", lengths=[20, 5], ranks=[8, 20], widths=(24, 24))
    assert columns(frozen=roomy_linear(siblings), parts=siblings.parts) == 0
    uneven = make_case("cpu", lengths=[20, 5], ranks=[8, 20], in_features=42, dtype=torch.bfloat16)
    assert columns(frozen=roomy_linear(uneven), parts=uneven.parts) == 0
    odd = replace(case.slots, row_starts=(0, 20))
    assert columns(tables=LaunchTables(case.segments, odd, device="cpu")) == 0
    wide = make_case("cpu", lengths=[20, 5], ranks=[8, 136], dtype=torch.bfloat16)
    many = replace(AUGMENTED, augmented_columns=256)
    assert columns(many, frozen=roomy_linear(wide, spare=256), parts=wide.parts, tables=wide.tables()) == 0
    nobody = replace(case.slots, ranks=(0, 0))
    assert columns(tables=LaunchTables(case.segments, nobody, device="cpu")) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dropouts", [None, [0.1, 0.0, 0.05, 0.5]])
def test_true_sizes(dropouts: list[float] | None) -> None:
    case = make_case(
        "cuda", lengths=[1500, 0, 333, 1], ranks=[64, 16, 30, 8], in_features=2048, widths=(500,), dropouts=dropouts,
        dtype=torch.bfloat16, extra=70,
    )  # fmt: skip
    tiles = TileChoice(term_forward=TermPlace.AUGMENTED, augmented_columns=128, augmented_rows=1)
    assert_equal_to_reference(case, run(case, tiles), roundings=ROUNDINGS + 1)
