"""Exact numerics of the grouped path: a slot's results alone, in a pack and in several passes, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.packed_linear import LaunchTables, SlotTable
from cohort.kernels.segments import SegmentTable
from tests.kernels.closeness import low_precision
from tests.kernels.packed_linear.cases import SMALL, Case, assert_equal_to_reference, make_case, sink_of

SAMPLES = (20, 3, 34)
OTHERS = ((7, 0), (41, 1))


@pytest.fixture(autouse=True)
def _with_triton() -> Iterator[None]:
    with use_backend(Backend.TRITON):
        yield


def case_of(
    device: str, *, ranks: Sequence[int], dropouts: Sequence[float] | None, slot_samples: object = None
) -> Case:
    """A pack whose middle slot has :data:`SAMPLES`."""
    lengths = [sum(OTHERS[0]), sum(SAMPLES), sum(OTHERS[1])]
    wide: dict[str, Any] = {"widths": (24, 16)} if device == "cpu" else {"in_features": 512, "widths": (256, 256)}
    case = make_case(device, lengths=lengths, ranks=ranks, dropouts=dropouts, dtype=low_precision(device), **wide)
    samples, slots = [*OTHERS[0], *SAMPLES, *OTHERS[1], 3], [0, 0, 1, 1, 1, 2, 2, -1]
    case.segments = SegmentTable.from_samples(samples, slots=slots, num_slots=3, num_rows=sum(samples))
    return case


def alone(case: Case, *, rows: slice, samples: Sequence[int]) -> Case:
    """The middle slot by itself with some of its rows, its factors at the beginning of a bank of its own."""
    own = case.slots.rank_rows(1)
    parts = [
        replace(
            part,
            a_RK=_aligned(part.a_RK[own]),
            b_RN=_aligned(part.b_RN[own]),
            grad_a_RK=torch.zeros_like(_aligned(part.a_RK[own]), dtype=torch.float32),
            grad_b_RN=torch.zeros_like(_aligned(part.b_RN[own]), dtype=torch.float32),
        )
        for part in case.parts
    ]
    slots = SlotTable(
        row_starts=(0,), ranks=case.slots.ranks[1:2], scales=case.slots.scales[1:2], dropouts=case.slots.dropouts[1:2]
    )
    segments = SegmentTable.from_samples(samples, slots=[0] * len(samples), num_slots=1, num_rows=sum(samples))
    keys = None if case.row_keys is None else case.row_keys[rows]
    return replace(case, x=case.x[rows], dy=case.dy[rows], parts=parts, slots=slots, segments=segments, row_keys=keys)


def _aligned(factor: Tensor) -> Tensor:
    whole = factor.new_zeros(-(-factor.shape[0] // 16) * 16, factor.shape[1])
    whole[: factor.shape[0]] = factor
    return whole


def exact(case: Case, *, fresh: Sequence[int] = ()) -> LaunchTables:
    return case.tables(exact=True, fresh_slots=fresh)


@pytest.mark.parametrize(("rank", "dropout"), [(5, 0.2), (150, 0.0)])
def test_a_slot_alone_is_the_slot_in_a_pack(triton_device: str, rank: int, dropout: float) -> None:
    tiles = replace(SMALL, ds_apart=True)
    case = case_of(triton_device, ranks=[200, rank, 16], dropouts=[0.5, dropout, 0.0])
    packed = case.run(tiles, exact(case))
    rows = case.segments.rows(1)
    one = alone(case, rows=rows, samples=SAMPLES)
    if not dropout:
        # nobody drops anything: a kernel of its own
        one.row_keys = None
    found = one.run(tiles, exact(one))
    own = case.slots.rank_rows(1)
    for name, value in found.items():
        expected = packed[name][rows] if name in ("y", "dx") else packed[name][own]
        assert torch.equal(value[: len(expected)], expected), name


def test_gradients_do_not_depend_on_where_a_step_is_cut(triton_device: str) -> None:
    tiles = replace(SMALL, ds_apart=True)
    case = case_of(triton_device, ranks=[8, 40, 16], dropouts=None)
    rows = case.segments.rows(1)
    whole = alone(case, rows=rows, samples=SAMPLES).run(
        tiles, exact(alone(case, rows=rows, samples=SAMPLES), fresh=[0])
    )
    for cut in (1, 2):
        first = rows.start + sum(SAMPLES[:cut])
        one = alone(case, rows=slice(rows.start, first), samples=SAMPLES[:cut])
        other = alone(case, rows=slice(first, rows.stop), samples=SAMPLES[cut:])
        one.run(tiles, exact(one, fresh=[0]))
        left = [(sink_of(part.grad_a_RK).clone(), sink_of(part.grad_b_RN).clone()) for part in one.parts]
        # the second pass adds to what the first one left
        sums = _run_onto(other, tiles=tiles, left=left)
        for name, value in sums.items():
            assert torch.equal(value, whole[name]), (cut, name)


def _run_onto(case: Case, *, tiles: object, left: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    from cohort.kernels.packed_linear import triton as grouped
    from cohort.models.weight_formats.kinds.plain import FrozenLinear

    frozen = FrozenLinear(case.weight, case.bias)
    frozen.is_exact = True
    parts = [replace(part, grad_a_RK=a, grad_b_RN=b) for part, (a, b) in zip(case.parts, left, strict=True)]
    arguments: dict[str, Any] = {
        "frozen": frozen,
        "parts": parts,
        "tables": exact(case),
        "row_keys_T": case.row_keys,
        "tiles": tiles,
    }
    _, s = grouped.grouped_forward(case.x, **arguments)
    grouped.grouped_backward(case.dy, x_TK=case.x, s_PTC=s, **arguments)
    return {f"d{kind}{i}": value for i, both in enumerate(left) for kind, value in zip("ab", both, strict=True)}


def test_exact_results_are_right(triton_device: str) -> None:
    case = case_of(triton_device, ranks=[150, 8, 16], dropouts=None)
    found = case.run(replace(SMALL, ds_apart=True), exact(case))
    # y and dx are rounded once more than with the term before or inside the product
    assert_equal_to_reference(case, found, roundings=8.0)


@pytest.mark.parametrize("dropouts", [[0.5, 0.2, 0.0], [0.0, 0.3, 0.1]])
def test_tables_of_a_recorded_pass_that_drops_give_the_bits_of_a_launched_one(
    triton_device: str, dropouts: Sequence[float]
) -> None:
    """They are built before it is known what is dropped, and filled for one layout after another."""
    tiles = replace(SMALL, ds_apart=True)
    case = case_of(triton_device, ranks=[24, 5, 16], dropouts=dropouts)
    layouts, slots = [case.segments], case.slots
    lengths = case.segments.num_rows
    layouts.append(SegmentTable.from_samples([30, lengths - 30], slots=[1, 2], num_slots=3, num_rows=lengths))
    nothing = SegmentTable(num_rows=lengths, offsets=(0,) * 4, samples=())
    undropped = replace(slots, dropouts=(0.0,) * 3)
    tables = LaunchTables(
        nothing,
        undropped,
        device=case.x.device,
        tile_rows=tiles.tile_rows,
        chunk_rows=tiles.chunk_rows,
        fixed_launch=True,
        exact=True,
        most_samples=12,
        drops=True,
    )
    for segments in (*layouts, layouts[0]):
        case.segments = segments
        expected = case.run(tiles, exact(case))
        tables.update(segments, slots)
        found = case.run(tiles, tables)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    # where nothing is dropped, the same as without keys
    tables.update(layouts[0], undropped)
    kept = case.run(tiles, tables)
    case.slots, case.row_keys = undropped, None
    plain = case.run(tiles, exact(case))
    assert all(torch.equal(kept[name], plain[name]) for name in plain)
