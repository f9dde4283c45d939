"""The rule that picks tiles: the measured table keeps a slot's bits, and what changes no bit fills the card."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from cohort.kernels.packed_linear.choice.tiles import (
    TermPlace,
    TileChoice,
    filling_strip,
    filling_tiles,
    measured_tiles,
    resident_stages,
    rows_per_chunk,
    shares_of,
)

# what decides the order in which a slot's S, dS, dA or dB is added up
ORDER_OF_SUMS = (
    "shrink_block", "shrink_splits", "ds_apart", "ds_block", "ds_splits", "output_rows", "output_block", "input_rows",
)  # fmt: skip


@pytest.mark.parametrize("gpu", sorted(measured_tiles()))
def test_a_slots_bits_do_not_depend_on_which_row_of_the_table_its_stream_takes(gpu: str) -> None:
    linears: dict[tuple[object, ...], list[TileChoice]] = {}
    for row in measured_tiles()[gpu]:
        linears.setdefault((row["in_features"], *row["out_widths"]), []).append(TileChoice(**row["choice"]))
    for linear, choices in linears.items():
        orders = {tuple(asdict(choice)[name] for name in ORDER_OF_SUMS) for choice in choices}
        assert len(orders) == 1, linear
        if any(choice.term_backward is TermPlace.INSIDE for choice in choices):
            # dA is written together with dX in shorter streams, alone in longer ones
            assert all(choice.da_rows == choice.input_rows for choice in choices), linear


@pytest.mark.parametrize(
    ("slot_rows", "rows"),
    [(1, 1024), (1024, 1024), (1025, 512), (2048, 512), (4096, 512), (8192, 1024), (16384, 2048), (16385, 2064)],
)
def test_a_slot_is_one_chunk_or_at_most_eight_of_at_least_half_as_many_rows(slot_rows: int, rows: int) -> None:
    assert rows_per_chunk(slot_rows, chunk_rows=1024) == rows
    assert slot_rows <= 1024 or -(-slot_rows // rows) <= 8


@pytest.mark.parametrize(("width", "shares"), [(1024, 1), (2048, 1), (4096, 2), (5120, 2), (8192, 4), (28672, 4)])
def test_wide_inputs_are_shared(width: int, shares: int) -> None:
    assert shares_of(width) == shares


@pytest.mark.parametrize(
    ("num_tiles", "width", "strip"), [(32, 1024, 128), (32, 4096, 256), (4, 1024, 128), (300, 1024, 1024)]
)
def test_strips_fill_the_multiprocessors(num_tiles: int, width: int, strip: int) -> None:
    assert filling_strip(1024, block=128, width=width, num_tiles=num_tiles, least_programs=264) == strip


def test_few_chunks_are_cut_into_narrow_strips() -> None:
    wide = TileChoice(output_block=128, input_block=128, input_warps=8)
    assert filling_tiles(wide, width=4096, num_chunks=8, least_programs=198) is wide
    narrow = filling_tiles(wide, width=4096, num_chunks=4, least_programs=198)
    assert (narrow.output_block, narrow.input_block, narrow.input_warps) == (64, 64, 4)
    one = filling_tiles(replace(wide, input_block=64), width=4096, num_chunks=4, least_programs=198)
    assert (one.output_block, one.input_block, one.input_warps) == (64, 64, 8)
    assert (narrow.da_block, one.da_block) == (64, 64)


@pytest.mark.parametrize(("num_programs", "stages"), [(100, 6), (132, 6), (256, 6), (300, 3), (512, 3), (5000, 3)])
def test_many_programs_keep_short_pipelines_so_that_all_run_at_once(num_programs: int, stages: int) -> None:
    found = resident_stages(
        6, stage_bytes=1 << 14, num_programs=num_programs, num_multiprocessors=132, limit_bytes=227 * 1024 - 4096
    )
    assert found == stages
