"""Sums over several programs, added up by the one that arrives last: equal to the definition, repeatable.

Interpreted programs run one after the other, so the last to arrive is always the same there; on a GPU it is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.packed_linear.choice.tiles import TileChoice
from tests.kernels.packed_linear.cases import SMALL, assert_equal_to_reference, make_case

SPLIT = replace(SMALL, shrink_splits=2, ds_apart=True, ds_splits=3)
CASES: dict[str, dict[str, Any]] = {
    "ragged, empty, one token, odd ranks": {"lengths": [70, 0, 1, 37], "ranks": [17, 3, 1, 5]},
    "siblings apart and dropout": {"lengths": [40, 21], "ranks": [8, 20], "widths": (24, 17), "dropouts": [0.2, 0.0]},
    "two passes of ranks": {"lengths": [35, 2], "ranks": [130, 9], "in_features": 32},
}


@pytest.mark.parametrize("name", CASES)
def test_shares_and_chunks_equal_the_definition(triton_device: str, name: str) -> None:
    case = make_case(triton_device, **CASES[name])
    assert_equal_to_reference(case, case.run(SPLIT))


def test_a_launch_leaves_the_counters_to_the_next_one(triton_device: str) -> None:
    case = make_case(triton_device, lengths=[70, 37], ranks=[17, 5])
    tables = case.tables(SPLIT)
    first, second = case.run(SPLIT, tables), case.run(SPLIT, tables)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not bool(tables.counters(1).any())


def test_narrow_strips_equal_the_definition(triton_device: str) -> None:
    # so few chunks that both weight gradients take strips of 64 columns instead of 128
    case = make_case(triton_device, lengths=[20, 5], ranks=[17, 5], in_features=70, widths=(130,))
    assert_equal_to_reference(case, case.run(replace(SPLIT, output_block=128, input_block=128, da_block=128)))


@pytest.mark.gpu
def test_a_long_slots_bits_do_not_depend_on_how_full_the_card_is() -> None:
    """Alone the slot's launches take narrow strips, beside 20 others wide ones and shorter pipelines."""
    options: dict[str, Any] = {"in_features": 4096, "widths": (4096,), "dtype": torch.bfloat16, "extra": 0}
    alone = make_case("cuda", lengths=[2048], ranks=[24], **options)
    pack = make_case("cuda", lengths=[2048, *[900] * 20], ranks=[24, *[64] * 20], **options)
    pack.x[:2048], pack.dy[:2048] = alone.x, alone.dy
    for own, beside in zip(alone.parts, pack.parts, strict=True):
        beside.a_RK[:24], beside.b_RN[:24] = own.a_RK[:24], own.b_RN[:24]
    tiles = TileChoice()
    found, together = alone.run(tiles, alone.tables(tiles)), pack.run(tiles, pack.tables(tiles))
    assert torch.equal(found["da0"][:24], together["da0"][:24])
    assert torch.equal(found["db0"][:24], together["db0"][:24])


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [2, 4, 8])
def test_splits_at_true_sizes_repeat_their_bits(splits: int) -> None:
    case = make_case(
        "cuda", lengths=[2048, 0, 333, 1, 1100], ranks=[64, 16, 24, 8, 3], in_features=2048, widths=(1024, 500),
        dtype=torch.bfloat16, extra=70,
    )  # fmt: skip
    tiles = TileChoice(shrink_splits=splits, ds_splits=splits, chunk_rows=256)
    tables = case.tables(tiles)
    first = case.run(tiles, tables)
    assert_equal_to_reference(case, first)
    for _ in range(5):
        again = case.run(tiles, tables)
        # the frozen product is the BLAS's: its bits repeat as well on one stream
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.gpu
def test_a_graph_of_split_launches_equals_the_definition() -> None:
    case = make_case(
        "cuda", lengths=[2048, 300], ranks=[16, 64], in_features=2048, widths=(1024,), dtype=torch.bfloat16
    )
    tiles = TileChoice(shrink_splits=4, ds_splits=2, chunk_rows=512)
    tables = case.tables(tiles)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        case.run(tiles, tables)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = case.run(tiles, tables)
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert_equal_to_reference(case, captured)
