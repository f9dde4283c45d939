"""The grouped Triton kernels against the float64 definition: forward and every gradient, odd shapes, isolation,
repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.core.errors import SegmentError
from cohort.kernels.backend import Backend
from cohort.kernels.packed_linear import LaunchTables, SlotTable, packed_linear
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near, low_precision
from tests.kernels.packed_linear.cases import SMALL, Case, assert_equal_to_reference, make_case, sink_of

CASES: dict[str, dict[str, Any]] = {
    "ragged": {"lengths": [20, 0, 1, 37], "ranks": [8, 3, 1, 20]},
    "siblings": {"lengths": [33, 17], "ranks": [16, 5], "widths": (24, 33, 48)},
    "two siblings, uneven columns": {"lengths": [9, 40], "ranks": [64, 8], "widths": (17, 50), "in_features": 33},
    "more siblings than a launch takes": {"lengths": [9, 20], "ranks": [4, 8], "widths": (16, 8, 24, 16, 40)},
    "wide ranks": {"lengths": [18, 21], "ranks": [64, 128]},
    "ranks above a program's": {"lengths": [18, 21, 5], "ranks": [140, 17, 260], "in_features": 32},
    "dropout": {"lengths": [20, 35, 4], "ranks": [8, 16, 40], "dropouts": [0.1, 0.0, 0.5], "widths": (24, 20)},
    "no row of any adapter": {"lengths": [0, 0], "ranks": [8, 4], "extra": 20},
    "no filler": {"lengths": [16, 16], "ranks": [16, 16], "extra": 0},
    "free slots": {"lengths": [0, 12, 0], "ranks": [0, 8, 0]},
    "bias": {"lengths": [20, 5], "ranks": [8, 16], "bias": True},
    "a bank's stride": {"lengths": [20, 40], "ranks": [8, 24], "row_stride": 112, "widths": (24, 16)},
}


@pytest.mark.parametrize("name", CASES)
def test_float32_equals_the_definition(triton_device: str, name: str) -> None:
    case = make_case(triton_device, **CASES[name])
    assert_equal_to_reference(case, case.run())


@pytest.mark.parametrize("name", ["ragged", "siblings", "dropout", "ranks above a program's"])
def test_sixteen_bits_equal_the_definition_but_for_roundings(triton_device: str, name: str) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **CASES[name])
    assert_equal_to_reference(case, case.run())


ORDERS: dict[str, TileChoice] = {
    "read Y again": replace(SMALL, term_forward=TermPlace.AFTER, term_backward=TermPlace.AFTER),
    "dS apart": replace(SMALL, ds_apart=True),
    "dS apart and split": replace(SMALL, ds_apart=True, ds_splits=2),
    "split the shrink": replace(SMALL, shrink_splits=3),
    "one chunk": replace(SMALL, chunk_rows=1024),
    "uneven tiles": replace(SMALL, tile_rows=32, shrink_block=16, output_block=64, output_rows=32, input_block=16),
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_products_equals_the_definition(triton_device: str, order: str) -> None:
    # siblings of uneven widths, slots of two chunks and of less than a tile, each with its own dropout
    case = make_case(
        triton_device, lengths=[33, 17, 4], ranks=[16, 5, 40], widths=(24, 33, 48), dropouts=[0.1, 0.0, 0.5]
    )
    assert_equal_to_reference(case, case.run(ORDERS[order]))


def test_backward_adds_to_the_sinks(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["siblings"])
    once = case.run()
    tables = case.tables()
    frozen = FrozenLinear(case.weight)
    arguments: dict[str, Any] = {"frozen": frozen, "parts": case.parts, "tables": tables, "row_keys_T": None}
    _, s = grouped.grouped_forward(case.x, tiles=SMALL, **arguments)
    grouped.grouped_backward(case.dy, x_TK=case.x, s_PTC=s, tiles=SMALL, **arguments)
    for index, part in enumerate(case.parts):
        assert_near(sink_of(part.grad_a_RK), 2 * once[f"da{index}"])
        assert_near(sink_of(part.grad_b_RN), 2 * once[f"db{index}"])


def test_fresh_slots_write_over_their_sinks_and_the_others_add(triton_device: str) -> None:
    # slot 0 takes the second stage, slot 1 writes its sink itself, slot 2 has a sample without rows
    case = make_case(triton_device, lengths=[70, 20, 0, 45], ranks=[24, 16, 8, 130], widths=(24, 20), extra=5)
    expected = case.run()
    for fresh in ((0, 1), (2, 3)):
        tables = LaunchTables(
            case.segments, case.slots, device=triton_device, tile_rows=16, chunk_rows=32, fresh_slots=fresh
        )
        for part in case.parts:
            sink_of(part.grad_a_RK).fill_(3.0)
            sink_of(part.grad_b_RN).fill_(3.0)
        arguments: dict[str, Any] = {
            "frozen": FrozenLinear(case.weight), "parts": case.parts, "tables": tables, "row_keys_T": None,
        }  # fmt: skip
        _, s = grouped.grouped_forward(case.x, tiles=SMALL, **arguments)
        grouped.grouped_backward(case.dy, x_TK=case.x, s_PTC=s, tiles=SMALL, **arguments)
        for index, part in enumerate(case.parts):
            for name, sink in ((f"da{index}", part.grad_a_RK), (f"db{index}", part.grad_b_RN)):
                for slot in (0, 1, 3):
                    ranks = case.slots.rank_rows(slot)
                    before = 0.0 if slot in fresh else 3.0
                    assert_near(sink_of(sink)[ranks] - before, expected[name][ranks], roundings=4)
                # a step that begins with a slot's empty sample begins with its gradients, which are zero
                left = 0.0 if 2 in fresh else 3.0
                assert bool((sink_of(sink)[case.slots.rank_rows(2)] == left).all()), "a slot without rows is left alone"


def test_rows_of_no_adapter_keep_the_frozen_bits(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 5], ranks=[8, 16], extra=40)
    for tiles in (SMALL, ORDERS["read Y again"]):
        found = case.run(tiles)
        frozen = FrozenLinear(case.weight)
        if tiles.term_forward is TermPlace.BEFORE:
            # adding onto zero may be another routine of the BLAS than writing: its own bits are the frozen bits there
            y, dx = torch.zeros_like(found["y"]), torch.zeros_like(found["dx"])
            frozen.add_forward(case.x, y)
            frozen.add_grad_input(case.dy, dx)
        else:
            y, dx = frozen.forward(case.x), frozen.grad_input(case.dy)
        assert torch.equal(found["y"][25:], y[25:])
        assert torch.equal(found["dx"][25:], dx[25:])


@pytest.mark.parametrize("where", ["a", "b", "x", "dy"])
def test_a_nan_stays_in_its_slot(triton_device: str, where: str) -> None:
    options: dict[str, Any] = {
        "lengths": [20, 13, 40], "ranks": [8, 16, 24], "widths": (24, 20), "dropouts": [0.1, 0.2, 0.0],
    }  # fmt: skip
    clean = make_case(triton_device, **options)
    expected = clean.run()
    case = make_case(triton_device, **options)
    rows, ranks = case.segments.rows(1), case.slots.rank_rows(1)
    target = {"a": case.parts[0].a_RK[ranks], "b": case.parts[0].b_RN[ranks], "x": case.x[rows], "dy": case.dy[rows]}[
        where
    ]
    target.fill_(torch.nan)
    found = case.run()
    others = torch.ones(case.x.shape[0], dtype=torch.bool, device=case.x.device)
    others[rows] = False
    other_ranks = torch.ones(case.parts[0].a_RK.shape[0], dtype=torch.bool, device=case.x.device)
    other_ranks[ranks] = False
    assert any(not bool(tensor.isfinite().all()) for tensor in found.values()), "the poison had no effect at all"
    for name, tensor in found.items():
        mask = others if name in ("y", "dx") else other_ranks
        assert torch.equal(tensor[mask], expected[name][mask]), name


def test_a_slots_bits_do_not_depend_on_its_neighbours(triton_device: str) -> None:
    pack = make_case(triton_device, lengths=[20, 45, 7], ranks=[64, 24, 3], dropouts=[0.1, 0.3, 0.0], extra=8)
    rows, ranks = pack.segments.rows(1), pack.slots.rank_rows(1)
    together = pack.run()
    assert pack.row_keys is not None
    part = pack.parts[0]
    alone = Case(
        x=torch.cat([pack.x[rows], pack.x[72:]]),
        dy=torch.cat([pack.dy[rows], pack.dy[72:]]),
        weight=pack.weight,
        bias=None,
        parts=[
            replace(
                part,
                a_RK=part.a_RK[ranks.start : ranks.start + 32].clone(),
                b_RN=part.b_RN[ranks.start : ranks.start + 32].clone(),
                grad_a_RK=torch.zeros_like(sink_of(part.grad_a_RK)[:32]),
                grad_b_RN=torch.zeros_like(sink_of(part.grad_b_RN)[:32]),
            )
        ],
        slots=SlotTable(row_starts=(0,), ranks=(24,), scales=(pack.slots.scales[1],), dropouts=(0.3,)),
        segments=SegmentTable.from_samples([45, 8], slots=[0, -1], num_slots=1, num_rows=53),
        row_keys=torch.cat([pack.row_keys[rows], pack.row_keys[72:]]),
    )
    by_itself = alone.run()
    assert torch.equal(by_itself["da0"][:24], together["da0"][ranks])
    assert torch.equal(by_itself["db0"][:24], together["db0"][ranks])


def test_a_repeat_has_the_same_bits(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["dropout"])
    first, second = case.run(), case.run()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fixed_tables_describe_one_layout_after_another(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 45], ranks=[24, 16], extra=7)
    tables = case.tables(fixed_launch=True)
    address = tables.passes[0].tiles.data_ptr()
    for lengths in ([20, 45], [70, 0], [1, 64]):
        segments = SegmentTable.from_samples([*lengths, 72 - sum(lengths)], slots=[0, 1, -1], num_slots=2, num_rows=72)
        case.segments = segments
        tables.update(segments, case.slots)
        assert tables.passes[0].tiles.data_ptr() == address
        assert_equal_to_reference(case, case.run(tables=tables))


def test_tables_refuse_a_layout_that_needs_another_launch(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[20, 45], ranks=[24, 16])
    wider = replace(case.slots, ranks=(25, 16))
    with pytest.raises(SegmentError, match="ranks up to 24"):
        case.tables(fixed_launch=True).update(case.segments, wider)
    with pytest.raises(SegmentError, match="one layout only"):
        case.tables().update(case.segments, case.slots)


def test_the_op_returns_gradients_where_there_are_no_sinks(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["siblings"])
    expected = case.reference()
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
    x = case.x.clone().requires_grad_()
    y = packed_linear(
        x,
        frozen=FrozenLinear(case.weight),
        parts=leaves,
        slots=case.slots,
        segments=case.segments,
        backend=Backend.TRITON,
    )
    y.backward(case.dy)
    assert x.grad is not None
    assert_near(y, expected["y"])
    assert_near(x.grad, expected["dx"])
    for index, part in enumerate(leaves):
        assert_near(sink_of(part.a_RK.grad), expected[f"da{index}"])
        assert_near(sink_of(part.b_RN.grad), expected[f"db{index}"])


def test_the_first_linear_needs_no_dx(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["ragged"])
    expected = case.reference()
    tables = case.tables()
    arguments: dict[str, Any] = {
        "frozen": FrozenLinear(case.weight), "parts": case.parts, "tables": tables, "row_keys_T": None,
    }  # fmt: skip
    _, s = grouped.grouped_forward(case.x, tiles=SMALL, **arguments)
    dx = grouped.grouped_backward(case.dy, x_TK=case.x, s_PTC=s, tiles=SMALL, with_dx=False, **arguments)
    assert dx is None
    assert_near(sink_of(case.parts[0].grad_a_RK), expected["da0"])


@pytest.mark.gpu
@pytest.mark.parametrize("dropouts", [None, [0.1, 0.0, 0.05, 0.5]])
def test_true_sizes_with_the_chosen_tiles(dropouts: Sequence[float] | None) -> None:
    """Default tiles at a model's widths, where pipelines are full and segments span several chunks."""
    # exact float32 products compile slowly: one part of ranks up to 64 there
    for dtype, widths, wide in ((torch.bfloat16, (2048, 512, 500), 128), (torch.float32, (500,), 32)):
        case = make_case(
            "cuda", lengths=[1500, 0, 333, 1], ranks=[64, 16, wide, 8], in_features=2048, widths=widths,
            dropouts=dropouts, dtype=dtype, extra=70,
        )  # fmt: skip
        tiles = grouped.tiles_for(case.x, case.parts)
        assert_equal_to_reference(case, case.run(tiles, case.tables(tiles)))


@pytest.mark.gpu
def test_a_captured_graph_follows_its_tables() -> None:
    case = make_case("cuda", lengths=[100, 200], ranks=[24, 64], in_features=256, widths=(256,), extra=212)
    tiles = TileChoice()
    tables = case.tables(tiles, fixed_launch=True)
    work: Callable[[], dict[str, Tensor]] = lambda: case.run(tiles, tables)  # noqa: E731
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for lengths in ([100, 200], [511, 0], [0, 1]):
        case.segments = SegmentTable.from_samples(
            [*lengths, 512 - sum(lengths)], slots=[0, 1, -1], num_slots=2, num_rows=512
        )
        tables.update(case.segments, case.slots)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal_to_reference(case, captured)
