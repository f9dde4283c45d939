"""Merging: what a batch leaves is filled from the next one, in each adapter's order where that is kept."""

from __future__ import annotations

from cohort.scheduling.pipelines.microbatch.merging import merge_batches
from cohort.scheduling.pipelines.microbatch.records import PipelineSample


def sample(adapter: int, place: int, *, length: int = 10, batch: int = 0) -> PipelineSample:
    return PipelineSample(adapter, batch, place, length)


def test_the_longest_of_the_emptiest_micro_batch_move() -> None:
    packed = [[[sample(0, 0)]], [[sample(1, 0, length=15), sample(1, 1, length=5)], [sample(1, 2, length=8)]]]
    merge_batches(packed, capacity=20, stages=2, multiple=1, keeps_order=False)
    assert packed == [
        [[sample(0, 0), sample(1, 2, length=8)]],
        [[sample(1, 0, length=15), sample(1, 1, length=5)]],
    ]


def test_in_order_the_first_ones_move_and_none_before_another() -> None:
    packed = [[[sample(0, 0)]], [[sample(1, 0, length=15), sample(2, 0, length=5)], [sample(1, 1, length=5)]]]
    merge_batches(packed, capacity=20, stages=2, multiple=1, keeps_order=True)
    # of adapter 1 the first does not fit, so the second stays as well
    assert packed == [
        [[sample(0, 0), sample(2, 0, length=5)]],
        [[sample(1, 0, length=15)], [sample(1, 1, length=5)]],
    ]


def test_a_unit_that_is_emptied_goes_on_being_filled() -> None:
    packed = [[[sample(0, 0)]], [[sample(1, 0, length=5)]], [[sample(2, 0, length=5)]]]
    merge_batches(packed, capacity=20, stages=1, multiple=1, keeps_order=True)
    assert packed == [[], [[sample(0, 0), sample(1, 0, length=5), sample(2, 0, length=5)]], []] or (
        [own for unit in packed for own in unit] == [[sample(0, 0), sample(1, 0, length=5), sample(2, 0, length=5)]]
    )


def test_no_batch_joins_an_earlier_one_of_its_adapter() -> None:
    packed = [[[sample(0, 0)]], [[sample(0, 0, batch=1)]]]
    merge_batches(packed, capacity=20, stages=2, multiple=1, keeps_order=True)
    assert packed == [[[sample(0, 0)]], [[sample(0, 0, batch=1)]]]
