"""The grouped Triton kernels against the float64 definition: forward and every gradient, odd shapes, isolation,
repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.core.errors import SegmentError
from cohort.kernels.backend import Backend
from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable, packed_linear, triton_launches
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice import TermPlace, TileChoice
from cohort.kernels.packed_linear.reference import packed_linear_reference
from cohort.kernels.segments import SegmentTable
from cohort.models.frozen_linear import FrozenLinear
from tests.kernels.closeness import assert_near, low_precision

SMALL = TileChoice(
    tile_rows=16,
    chunk_rows=32,
    shrink_block=32,
    ds_block=16,
    expand_block=16,
    expand_strip=32,
    output_rows=16,
    output_block=32,
    input_rows=16,
    input_block=32,
    ds_apart=False,
)
# bf16 keeps S and dS in 16 bits between two products: three roundings of independent elements in every result
ROUNDINGS = 4.0


@dataclass(kw_only=True)
class Case:
    """One linear, its adapters, one stream; ``lengths[z]`` rows of slot z, then ``extra`` rows of no adapter."""

    x: Tensor
    dy: Tensor
    weight: Tensor
    bias: Tensor | None
    parts: list[LoraPart]
    slots: SlotTable
    segments: SegmentTable
    row_keys: Tensor | None

    def tables(self, tiles: TileChoice = SMALL, **options: bool) -> LaunchTables:
        return LaunchTables(
            self.segments,
            self.slots,
            device=self.x.device,
            tile_rows=tiles.tile_rows,
            chunk_rows=tiles.chunk_rows,
            **options,
        )

    def run(self, tiles: TileChoice = SMALL, tables: LaunchTables | None = None) -> dict[str, Tensor]:
        frozen = FrozenLinear(self.weight, self.bias)
        tables = tables or self.tables(tiles)
        for part in self.parts:
            _sink(part.grad_a_RK).zero_()
            _sink(part.grad_b_RN).zero_()
        arguments: dict[str, Any] = {
            "frozen": frozen,
            "parts": self.parts,
            "tables": tables,
            "row_keys_T": self.row_keys,
        }
        y, s = grouped.grouped_forward(self.x, tiles=tiles, **arguments)
        dx = grouped.grouped_backward(self.dy, x_TK=self.x, s_PTC=s, tiles=tiles, **arguments)
        assert dx is not None
        results = {"y": y, "dx": dx}
        for index, part in enumerate(self.parts):
            results[f"da{index}"] = _sink(part.grad_a_RK).clone()
            results[f"db{index}"] = _sink(part.grad_b_RN).clone()
        return results

    def reference(self) -> dict[str, Tensor]:
        x = self.x.double().requires_grad_()
        parts = [
            replace(
                part,
                a_RK=part.a_RK.double().requires_grad_(),
                b_RN=part.b_RN.double().requires_grad_(),
                grad_a_RK=None,
                grad_b_RN=None,
            )
            for part in self.parts
        ]
        y = packed_linear_reference(
            x,
            weight_NK=self.weight.double(),
            bias_N=None if self.bias is None else self.bias.double(),
            parts=parts,
            slots=self.slots,
            segments=self.segments,
            row_keys_T=self.row_keys,
        )
        y.backward(self.dy.double())
        assert x.grad is not None
        results = {"y": y.detach(), "dx": x.grad}
        for index, part in enumerate(parts):
            results[f"da{index}"] = torch.zeros_like(part.a_RK) if part.a_RK.grad is None else part.a_RK.grad
            results[f"db{index}"] = torch.zeros_like(part.b_RN) if part.b_RN.grad is None else part.b_RN.grad
        return results


def _sink(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient


def make_case(
    device: str,
    *,
    lengths: Sequence[int],
    ranks: Sequence[int],
    in_features: int = 40,
    widths: Sequence[int] = (24,),
    dropouts: Sequence[float] | None = None,
    extra: int = 3,
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    row_stride: int | None = None,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * size).to(device, dtype)

    num_rows = sum(lengths) + extra
    starts, row = [], 0
    for rank in ranks:
        starts.append(row)
        row += -(-rank // 16) * 16
    slots = SlotTable(
        row_starts=tuple(starts),
        ranks=tuple(ranks),
        scales=tuple(0.5 + index for index in range(len(ranks))),
        dropouts=tuple(dropouts or [0.0] * len(ranks)),
    )
    segments = SegmentTable.from_samples(
        [*lengths, extra], slots=[*range(len(ranks)), -1], num_slots=len(ranks), num_rows=num_rows
    )

    def factor(width: int, size: float) -> Tensor:
        whole = torch.zeros(max(row, 1), row_stride or width, device=device, dtype=dtype)[:, :width]
        for start, rank in zip(starts, ranks, strict=True):
            whole[start : start + rank] = normal(rank, width, size=size)
        return whole

    def sink(width: int) -> Tensor:
        return torch.zeros(max(row, 1), row_stride or width, device=device)[:, :width]

    parts, column = [], 0
    for index, width in enumerate(widths):
        parts.append(
            LoraPart(
                a_RK=factor(in_features, in_features**-0.5),
                b_RN=factor(width, 0.3),
                grad_a_RK=sink(in_features),
                grad_b_RN=sink(width),
                column_start=column,
                module_key=(1 << 31) + 77 * index,
            )
        )
        column += width
    row_keys = torch.randint(0, 2**32, (num_rows,), generator=generator).to(device) if dropouts else None
    return Case(
        x=normal(num_rows, in_features),
        dy=normal(num_rows, column),
        weight=normal(column, in_features, size=in_features**-0.5),
        bias=normal(column) if bias else None,
        parts=parts,
        slots=slots,
        segments=segments,
        row_keys=row_keys,
    )


def assert_equal_to_reference(case: Case, found: dict[str, Tensor], *, roundings: float = ROUNDINGS) -> None:
    expected = case.reference()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        # sinks are float32 but add up products of 16-bit operands: they are as near as those
        assert_near(tensor.to(case.x.dtype), expected[name], roundings=roundings)


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
@pytest.mark.parametrize("name", ["siblings", "dropout"])
def test_every_order_of_products_equals_the_definition(triton_device: str, name: str, order: str) -> None:
    case = make_case(triton_device, **CASES[name])
    assert_equal_to_reference(case, case.run(ORDERS[order]))


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


@pytest.mark.parametrize("name", INSIDE_CASES)
def test_the_term_inside_the_product_equals_the_definition(
    triton_device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(triton_device, dtype=low_precision(triton_device), **INSIDE_CASES[name])
    calls: list[bool] = []

    def counted(*operands: Any, **options: Any) -> None:
        calls.append(options["forward"])
        triton_launches.product(*operands, **options)

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


def test_backward_adds_to_the_sinks(triton_device: str) -> None:
    case = make_case(triton_device, **CASES["siblings"])
    once = case.run()
    tables = case.tables()
    frozen = FrozenLinear(case.weight)
    arguments: dict[str, Any] = {"frozen": frozen, "parts": case.parts, "tables": tables, "row_keys_T": None}
    _, s = grouped.grouped_forward(case.x, tiles=SMALL, **arguments)
    grouped.grouped_backward(case.dy, x_TK=case.x, s_PTC=s, tiles=SMALL, **arguments)
    for index, part in enumerate(case.parts):
        assert_near(_sink(part.grad_a_RK), 2 * once[f"da{index}"])
        assert_near(_sink(part.grad_b_RN), 2 * once[f"db{index}"])


def test_fresh_slots_write_over_their_sinks_and_the_others_add(triton_device: str) -> None:
    # slot 0 takes the second stage, slot 1 writes its sink itself, slot 2 has no rows
    case = make_case(triton_device, lengths=[70, 20, 0, 45], ranks=[24, 16, 8, 130], widths=(24, 20), extra=5)
    expected = case.run()
    for fresh in ((0, 1), (3,), (0, 1, 2, 3)):
        tables = LaunchTables(
            case.segments, case.slots, device=triton_device, tile_rows=16, chunk_rows=32, fresh_slots=fresh
        )
        for part in case.parts:
            _sink(part.grad_a_RK).fill_(3.0)
            _sink(part.grad_b_RN).fill_(3.0)
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
                    assert_near(_sink(sink)[ranks] - before, expected[name][ranks], roundings=4)
                assert bool((_sink(sink)[case.slots.rank_rows(2)] == 3.0).all()), "a slot without rows is left alone"


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
                grad_a_RK=torch.zeros_like(_sink(part.grad_a_RK)[:32]),
                grad_b_RN=torch.zeros_like(_sink(part.grad_b_RN)[:32]),
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
        assert_near(_sink(part.a_RK.grad), expected[f"da{index}"])
        assert_near(_sink(part.b_RN.grad), expected[f"db{index}"])


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
    assert_near(_sink(case.parts[0].grad_a_RK), expected["da0"])


@pytest.mark.gpu
@pytest.mark.parametrize("dropouts", [None, [0.1, 0.0, 0.05, 0.5]])
def test_true_sizes_with_the_chosen_tiles(dropouts: Sequence[float] | None) -> None:
    """Default tiles at a model's widths, where pipelines are full and segments span several chunks."""
    for dtype, roundings in ((torch.bfloat16, ROUNDINGS), (torch.float32, ROUNDINGS)):
        case = make_case(
            "cuda", lengths=[1500, 0, 333, 1], ranks=[64, 16, 128, 8], in_features=2048, widths=(2048, 512, 500),
            dropouts=dropouts, dtype=dtype, extra=70,
        )  # fmt: skip
        tiles = grouped.tiles_for(case.x, case.parts)
        assert_equal_to_reference(case, case.run(tiles, case.tables(tiles)), roundings=roundings)


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
