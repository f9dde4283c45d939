"""The device tables: which slots own a tile of the stream, what chunks leave, room for other layouts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from cohort.kernels.packed_linear.launch.tables import OWNER_WIDTH, PRODUCT_ROWS
from cohort.kernels.segments import SegmentTable
from tests.kernels.packed_linear.cases import make_case


@pytest.mark.parametrize(
    ("lengths", "ranks", "extra"),
    [
        ([128, 256, 5], [16, 32, 8], 0),
        ([20, 0, 1, 117, 9, 300], [8, 3, 0, 20, 64, 40], 13),
        ([0, 0], [8, 4], 200),
        ([7] * 30, [8, 24] * 15, 300),
    ],
)
def test_a_tile_names_the_slots_with_rows_in_it_and_what_the_first_of_them_says(
    lengths: list[int], ranks: list[int], extra: int
) -> None:
    case = make_case("cpu", lengths=lengths, ranks=ranks, extra=extra)
    rank_pass = case.tables().passes[0]
    slots, owners = rank_pass.slots.numpy(), rank_pass.owners.numpy()
    owning = [slot for slot in range(len(lengths)) if lengths[slot] and ranks[slot]]
    assert slots[0, 0] == len(owning)
    assert owners.shape == (-(-(sum(lengths) + extra) // PRODUCT_ROWS), OWNER_WIDTH)
    for tile, owner in enumerate(owners):
        start, stop = tile * PRODUCT_ROWS, (tile + 1) * PRODUCT_ROWS
        rows = [case.segments.rows(slot) for slot in owning]
        here = [index for index, own in enumerate(rows) if own.start < stop and own.stop > start]
        if not here:
            assert not owner.any()
            continue
        assert list(range(*owner[:2])) == here
        slot = owning[here[0]]
        scale = np.array([case.slots.scales[slot]], dtype=np.float32).view(np.int32)[0]
        own = case.segments.rows(slot)
        assert list(owner[2:]) == [own.start, own.stop, case.slots.row_starts[slot], ranks[slot], scale, 0]
        assert list(owner[2:7]) == list(slots[1 + here[0], :5])


def test_what_chunks_leave_takes_their_own_padded_rank(triton_device: str) -> None:
    tables = make_case(triton_device, lengths=[70, 40, 33, 32], ranks=[17, 60, 5, 64]).tables()
    # chunks of 16 rows: 5 of 32 ranks, 3 of 64 and 3 of 16; 32 rows are one chunk and leave nothing
    assert tables.passes[0].num_part_rows == 5 * 32 + 3 * 64 + 3 * 16


def test_exact_chunks_are_cut_from_samples_and_name_the_first_of_their_slot() -> None:
    case = make_case("cpu", lengths=[70, 40, 5], ranks=[17, 60, 5], extra=13)
    case.segments = SegmentTable.from_samples(
        [20, 50, 40, 2, 3, 13], slots=[0, 0, 1, 2, 2, -1], num_slots=3, num_rows=128
    )
    (rank_pass,) = case.tables(exact=True, fresh_slots=[1]).passes
    chunks, sums = rank_pass.chunks.numpy(), rank_pass.sums.numpy()
    # rows are cut in steps of 16 where a sample has more than 32: those of 50 and of 40
    starts = [[0, 20], [20, 36], [36, 52], [52, 68], [68, 70], [70, 86], [86, 102], [102, 110], [110, 112], [112, 115]]
    assert chunks[1 : 1 + len(starts), :2].tolist() == starts
    assert sums[1:4, [1, 4, 7]].tolist() == [[5, 0, -1], [3, 5, -2], [2, 8, -1]]


def test_fixed_exact_tables_have_room_for_samples() -> None:
    case = make_case("cpu", lengths=[70, 0], ranks=[64, 64], extra=130)
    tables = case.tables(fixed_launch=True, exact=True, most_samples=10)
    (rank_pass,) = tables.passes
    for lengths in ([20] * 10, [191, *[1] * 9], [200]):
        case.segments = SegmentTable.from_samples(lengths, slots=[0] * len(lengths), num_slots=2, num_rows=200)
        (needed,) = case.tables(exact=True).passes
        assert needed.num_chunks <= rank_pass.num_chunks, lengths
        assert needed.num_sums <= rank_pass.num_sums, lengths
        assert needed.num_part_rows <= rank_pass.num_part_rows, lengths
        tables.update(case.segments, case.slots)


def test_fixed_tables_have_room_for_any_layout() -> None:
    case = make_case("cpu", lengths=[70, 0, 0], ranks=[64, 64, 64], extra=130)
    tables = case.tables(fixed_launch=True)
    (rank_pass,) = tables.passes
    for lengths in ([33, 33, 33], [200, 0, 0], [100, 33, 67], [0, 0, 0], [1, 199, 0]):
        segments = SegmentTable.from_samples(
            [*lengths, 200 - sum(lengths)], slots=[0, 1, 2, -1], num_slots=3, num_rows=200
        )
        case.segments = segments
        (needed,) = case.tables().passes
        assert needed.num_chunks <= rank_pass.num_chunks, lengths
        assert needed.num_sums <= rank_pass.num_sums, lengths
        assert needed.num_part_rows <= rank_pass.num_part_rows, lengths
        tables.update(segments, case.slots)


@pytest.mark.parametrize("exact", [False, True])
def test_a_fresh_slot_none_of_whose_samples_has_rows_is_written_zeros(exact: bool) -> None:
    """Where a layer leaves its rows out: nothing else would write over the gradients of the step before."""
    case = make_case("cpu", lengths=[20, 0, 7, 0], ranks=[17, 150, 5, 3], extra=5)
    case.segments = SegmentTable.from_samples([0, 20, 0, 0, 7], slots=[0, 0, 1, 1, 2], num_slots=4, num_rows=32)
    write, add = -2, -1
    for index, rank_pass in enumerate(case.tables(exact=exact, fresh_slots=[0, 1, 3]).passes):
        chunks = rank_pass.chunks.numpy()
        own = chunks[1 : 1 + chunks[0, 0]]
        found = {(int(start), int(stop), int(rank)): int(into) for start, stop, _, rank, *_, into in own if rank}
        # slot 1 has ranks of both passes; slot 3 has no sample
        assert found[(20, 20, 128 if index == 0 else 22)] == write
        assert not any(rank == 3 for *_, rank in found)
        if index == 0:
            assert found[(20, 27, 5)] == add
    # without samples that are fresh there is nothing to write
    chunks = case.tables(exact=exact).passes[0].chunks.numpy()
    assert not any(start == stop for start, stop, *_ in chunks[1 : 1 + chunks[0, 0]])
