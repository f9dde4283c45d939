"""Which rows belong to which slot: tables are built from samples, and wrong ones are refused."""

from __future__ import annotations

import pytest

from cohort.core.errors import SegmentError
from cohort.kernels.segments import SampleSpan, SegmentTable


def table() -> SegmentTable:
    return SegmentTable.from_samples([3, 0, 2, 4, 1], slots=[0, 0, 2, 2, -1], num_slots=4, num_rows=16)


def test_samples_become_spans_and_slots_become_row_ranges() -> None:
    found = table()
    assert found.offsets == (0, 3, 3, 9, 9)
    assert [found.rows(slot) for slot in range(found.num_slots)] == [slice(0, 3), slice(3, 3), slice(3, 9), slice(9, 9)]
    assert found.samples[-1] == SampleSpan(9, 10, -1)
    assert found.num_adapter_rows == 9


def test_by_slot_joins_the_samples_of_a_slot() -> None:
    joined = table().by_slot()
    assert joined.offsets == table().offsets
    assert joined.samples == (SampleSpan(0, 3, 0), SampleSpan(3, 3, 1), SampleSpan(3, 9, 2), SampleSpan(9, 9, 3))


@pytest.mark.parametrize(
    ("lengths", "slots", "num_rows", "words"),
    [
        ([1, 2], [1, 0], 8, "sorted by slot"),
        ([1, 2], [-1, 0], 8, "sorted by slot"),
        ([1], [4], 8, "a sample is in slot 4"),
        ([-1], [0], 8, "cannot have -1 rows"),
        ([1, 1], [0], 8, "2 lengths but 1 slots"),
        ([9], [0], 8, "segments cover 9 rows but the stream has 8"),
    ],
)
def test_samples_that_do_not_fit_are_refused(lengths: list[int], slots: list[int], num_rows: int, words: str) -> None:
    with pytest.raises(SegmentError, match=words):
        SegmentTable.from_samples(lengths, slots=slots, num_slots=4, num_rows=num_rows)


@pytest.mark.parametrize(
    ("offsets", "samples", "words"),
    [
        ((1, 2), (), "must start at 0"),
        ((0, 2, 1), (), "never decrease"),
        ((0, 2), (SampleSpan(1, 2, 0),), "without gaps"),
        ((0, 2, 4), (SampleSpan(0, 3, 0), SampleSpan(3, 4, 1)), "outside its slot's rows 0:2"),
        ((0, 2), (SampleSpan(0, 2, -1),), "lies within adapter rows"),
        ((0, 2), (SampleSpan(0, 1, 0),), "sample spans end at row 1"),
    ],
)
def test_spans_that_contradict_the_offsets_are_refused(
    offsets: tuple[int, ...], samples: tuple[SampleSpan, ...], words: str
) -> None:
    with pytest.raises(SegmentError, match=words):
        SegmentTable(num_rows=4, offsets=offsets, samples=samples)
