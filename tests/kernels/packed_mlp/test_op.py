"""The fused feed-forward block against the float64 definition: forward and every gradient, odd shapes, isolation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.core.errors import SegmentError, ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable, packed_linear
from cohort.kernels.packed_mlp import packed_mlp
from cohort.kernels.packed_mlp import triton as fused
from cohort.kernels.packed_mlp.choice import default_tiles
from cohort.kernels.packed_mlp.op import fuses
from cohort.kernels.segments import SegmentTable
from cohort.kernels.swiglu import swiglu
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near, low_precision
from tests.kernels.packed_linear.cases import sink_of
from tests.kernels.packed_mlp.cases import ROUNDINGS, SMALL, Case, assert_equal_to_reference, make_case

DB_APART = replace(SMALL, forward_strip=16, with_db=False)

CASES: dict[str, dict[str, Any]] = {
    "ragged": {"lengths": [20, 0, 1, 37], "ranks": [8, 3, 1, 20]},
    "even width": {"lengths": [16, 16], "ranks": [16, 5], "width": 32, "extra": 0},
    "wide ranks": {"lengths": [18, 5], "ranks": [64, 128]},
    "dropout": {"lengths": [20, 35, 4], "ranks": [8, 16, 40], "dropouts": [0.1, 0.0, 0.5]},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 20},
    "free slots": {"lengths": [0, 12, 0], "ranks": [0, 8, 0]},
    "a bank's stride": {"lengths": [20, 40], "ranks": [8, 24], "row_stride": 112},
}


@pytest.fixture(autouse=True)
def _poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output starts as NaN, so that an element nobody writes is found."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


@pytest.mark.parametrize("name", CASES)
def test_float32_equals_the_definition(triton_device: str, name: str) -> None:
    case = make_case(triton_device, **CASES[name])
    assert_equal_to_reference(case, case.run())


@pytest.mark.parametrize("name", ["ragged", "dropout", "wide ranks"])
def test_sixteen_bits_equal_the_definition_but_for_roundings(triton_device: str, name: str) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **CASES[name])
    assert_equal_to_reference(case, case.run())


def test_db_apart_equals_the_definition(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["dropout"])
    assert_equal_to_reference(case, case.run(DB_APART))


def test_rows_of_no_adapter_keep_the_frozen_bits(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 5], ranks=[8, 16], extra=40, dtype=low_precision(triton_device))
    found = case.run()
    gate_up, down = FrozenLinear(case.gate_up), FrozenLinear(case.down)
    g = gate_up.forward(case.x).requires_grad_()
    act = swiglu(g, backend=Backend.TRITON)
    # adding onto zero may be another routine of the BLAS than writing: its own bits are the frozen bits there
    y, dx = torch.zeros_like(found["y"]), torch.zeros_like(found["dx"])
    down.add_forward(act.detach(), y)
    (dg,) = torch.autograd.grad(act, g, down.grad_input(case.dy))
    gate_up.add_grad_input(dg, dx)
    assert torch.equal(found["y"][25:], y[25:])
    assert torch.equal(found["dx"][25:], dx[25:])


THREE: dict[str, Any] = {"lengths": [20, 13, 33], "ranks": [8, 16, 24], "dropouts": [0.1, 0.2, 0.0]}


@functools.cache
def _three(device: str) -> dict[str, Tensor]:
    """What three finite slots give: one run for all that is compared with it."""
    return make_case(device, **THREE).run()


@pytest.mark.parametrize("where", ["gate a", "up b", "down a", "down b", "x", "dy"])
def test_a_nan_stays_in_its_slot(triton_device: str, where: str) -> None:
    expected = _three(triton_device)
    case = make_case(triton_device, **THREE)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    gate, up, down = case.parts
    targets = {
        "gate a": gate.a_RK[ranks], "up b": up.b_RN[ranks], "down a": down.a_RK[ranks], "down b": down.b_RN[ranks],
        "x": case.x[rows], "dy": case.dy[rows],
    }  # fmt: skip
    targets[where].fill_(torch.nan)
    found = case.run()
    other_rows = torch.ones(case.x.shape[0], dtype=torch.bool, device=case.x.device)
    other_rows[rows] = False
    other_ranks = torch.ones(gate.a_RK.shape[0], dtype=torch.bool, device=case.x.device)
    other_ranks[ranks] = False
    assert any(not bool(tensor.isfinite().all()) for tensor in found.values()), "the poison had no effect at all"
    for name, tensor in found.items():
        mask = other_rows if name in ("y", "dx") else other_ranks
        assert torch.equal(tensor[mask], expected[name][mask]), name


def test_a_slots_gradients_have_the_same_bits_alone(triton_device: str) -> None:
    pack = make_case(triton_device, lengths=[20, 45, 7], ranks=[64, 24, 3], dropouts=[0.1, 0.3, 0.0], extra=8)
    rows, ranks = pack.segments.rows(1), pack.slots.rank_rows(1)
    together = pack.run()
    assert pack.row_keys is not None
    own = slice(ranks.start, ranks.start + 32)
    alone = Case(
        x=torch.cat([pack.x[rows], pack.x[72:]]),
        dy=torch.cat([pack.dy[rows], pack.dy[72:]]),
        gate_up=pack.gate_up,
        down=pack.down,
        parts=[
            replace(
                part,
                a_RK=part.a_RK[own].clone(),
                b_RN=part.b_RN[own].clone(),
                grad_a_RK=torch.zeros_like(sink_of(part.grad_a_RK)[:32]),
                grad_b_RN=torch.zeros_like(sink_of(part.grad_b_RN)[:32]),
            )
            for part in pack.parts
        ],
        slots=SlotTable(row_starts=(0,), ranks=(24,), scales=(pack.slots.scales[1],), dropouts=(0.3,)),
        segments=SegmentTable.from_samples([45, 8], slots=[0, -1], num_slots=1, num_rows=53),
        row_keys=torch.cat([pack.row_keys[rows], pack.row_keys[72:]]),
    )
    by_itself = alone.run()
    for name in ("da_gate", "db_gate", "da_up", "db_up", "da_down", "db_down"):
        # what the frozen product of another height gives may differ in its last bits, and its rows feed every gradient
        assert_near(by_itself[name][:24], together[name][ranks])


def test_a_repeat_has_the_same_bits(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["dropout"])
    first, second = case.run(), case.run()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fixed_tables_describe_one_layout_after_another(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 25], ranks=[24, 16], extra=7)
    tables = case.tables(fixed_launch=True)
    for lengths in ([20, 25], [50, 0], [1, 40]):
        case.segments = SegmentTable.from_samples(
            [*lengths, 52 - sum(lengths)], slots=[0, 1, -1], num_slots=2, num_rows=52
        )
        tables.update(case.segments, case.slots)
        assert_equal_to_reference(case, case.run(tables=tables))


def _op(case: Case, parts: list[LoraPart], x: Tensor, *, tables: LaunchTables | None = None) -> Tensor:
    return packed_mlp(
        x,
        gate_up=FrozenLinear(case.gate_up),
        gate_up_parts=parts[:2],
        down=FrozenLinear(case.down),
        down_parts=parts[2:],
        slots=case.slots,
        segments=case.segments,
        row_keys_T=case.row_keys,
        tables=tables,
        backend=Backend.TRITON,
        fused=True,
    )


def test_the_op_adds_to_sinks_and_else_returns_gradients(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "default_tiles", lambda: SMALL)
    case = make_case(triton_device, dtype=low_precision(triton_device), **CASES["dropout"])
    assert fuses(case.x, gate_up_parts=case.parts[:2], down_parts=case.parts[2:], slots=case.slots)
    expected = case.reference()
    x = case.x.clone().requires_grad_()
    y = _op(case, case.parts, x, tables=case.tables())
    y.backward(case.dy)
    assert x.grad is not None
    assert_equal_to_reference(case, {"y": y.detach(), "dx": x.grad} | case.sinks())
    leaves = [
        replace(
            part,
            a_RK=part.a_RK.clone().requires_grad_(),
            b_RN=part.b_RN.clone().requires_grad_(),
            grad_a_RK=None,
            grad_b_RN=None,
        )
        for part in case.parts
    ]
    _op(case, leaves, x, tables=case.tables()).backward(case.dy)
    for name, part in zip(("gate", "up", "down"), leaves, strict=True):
        assert_near(sink_of(part.a_RK.grad), expected[f"da_{name}"], roundings=ROUNDINGS)
        assert_near(sink_of(part.b_RN.grad), expected[f"db_{name}"], roundings=ROUNDINGS)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([16] * 8, True), ([8, 16, 32, 64], True), ([16, 64], False), ([16, 16, 16, 65], False), ([0, 32], True)],
)
def test_the_measured_rule_says_where_it_fuses(ranks: list[int], expected: bool) -> None:
    case = make_case("cpu", lengths=[4] * len(ranks), ranks=ranks, dtype=torch.bfloat16)
    rule: dict[str, Any] = {"gate_up_parts": case.parts[:2], "slots": case.slots}
    assert fuses(case.x, down_parts=case.parts[2:], **rule) is expected
    assert not fuses(case.x, down_parts=[], **rule)
    assert not fuses(case.x.float(), down_parts=case.parts[2:], **rule)


@pytest.mark.parametrize("adapted", ["all", "gate alone", "none"])
def test_on_the_cpu_it_is_the_composition_bit_for_bit(adapted: str) -> None:
    case = make_case("cpu", lengths=[20, 9], ranks=[8, 3], dropouts=[0.2, 0.0])
    parts = {"all": case.parts, "gate alone": case.parts[:1], "none": []}[adapted]
    shared: dict[str, Any] = {"slots": case.slots, "segments": case.segments, "row_keys_T": case.row_keys}
    gate_up, down = FrozenLinear(case.gate_up), FrozenLinear(case.down)
    results = []
    for whole in (True, False):
        for part in case.parts:
            sink_of(part.grad_a_RK).zero_()
            sink_of(part.grad_b_RN).zero_()
        x = case.x.clone().requires_grad_()
        if whole:
            y = packed_mlp(
                x, gate_up=gate_up, gate_up_parts=parts[:2], down=down, down_parts=parts[2:], backend=None, **shared
            )  # fmt: skip
        else:
            act = swiglu(packed_linear(x, frozen=gate_up, parts=parts[:2], **shared))
            y = packed_linear(act, frozen=down, parts=parts[2:], **shared)
        y.backward(case.dy)
        assert x.grad is not None
        results.append({"y": y.detach(), "dx": x.grad} | case.sinks())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_what_does_not_fit_is_refused(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20], ranks=[8], dtype=low_precision(triton_device))
    with pytest.raises(SegmentError, match="segments cover 23 rows but x has 22"):
        _op(case, case.parts, case.x[1:])
    with pytest.raises(ShapeError, match="columns 8:32 of a frozen linear with 24"):
        _op(case, [case.parts[0], case.parts[1], replace(case.parts[2], column_start=8)], case.x)
    case.down = case.down[:, :30]
    with pytest.raises(ShapeError, match="80 wide together but down takes 30"):
        _op(case, case.parts, case.x)


@pytest.mark.gpu
@pytest.mark.parametrize("dropouts", [None, [0.1, 0.0, 0.05, 0.5]])
@pytest.mark.parametrize("width", [2048, 1000])
def test_true_tiles(dropouts: Sequence[float] | None, width: int) -> None:
    """The tiles that training uses, where pipelines are full and segments span several chunks."""
    for ranks in ([64, 16, 128, 8], [16, 16, 4, 32]):
        case = make_case(
            "cuda", lengths=[1500, 0, 333, 1], ranks=ranks, hidden=1024, width=width, dropouts=dropouts,
            dtype=torch.bfloat16, extra=70, tile_rows=64, chunk_rows=1024,
        )  # fmt: skip
        found = case.run(default_tiles())
        assert_equal_to_reference(case, found)
        again = case.run(default_tiles())
        assert all(torch.equal(found[name], again[name]) for name in found)
