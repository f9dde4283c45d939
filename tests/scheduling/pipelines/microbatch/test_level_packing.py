"""Equally long micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipelines.microbatch.choose_micro_batches import MicroBatchSettings, schedule_micro_batches
from cohort.scheduling.pipelines.microbatch.level_packing import level_pack
from cohort.scheduling.pipelines.microbatch.packing import first_fit_decreasing
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, find_schedule_faults, padded_tokens
from tests.scheduling.pipelines.microbatch.test_choose_micro_batches import draw


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=30),
    st.integers(60, 200),
    st.sampled_from([1, 4]),
)
def test_every_sample_once_and_never_more_bins_than_first_fit(
    drawn: list[tuple[int, int]], capacity: int, multiple: int
) -> None:
    samples = [PipelineSample(adapter, 0, place, length) for place, (adapter, length) in enumerate(drawn)]
    bins = level_pack(samples, capacity=capacity, multiple=multiple)
    assert sorted(sample for own in bins for sample in own) == sorted(samples)
    assert all(own and padded_tokens(own, multiple) <= capacity for own in bins)
    assert len(bins) <= len(first_fit_decreasing(samples, capacity=capacity, multiple=multiple))


def test_bins_are_level() -> None:
    samples = [PipelineSample(0, 0, place, length) for place, length in enumerate([50, 40, 30, 30, 30, 20])]
    bins = level_pack(samples, capacity=110)
    assert [sum(sample.length for sample in own) for own in bins] == [100, 100]
    with pytest.raises(ValueError, match="does not fit"):
        level_pack(samples, capacity=49)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_schedules_of_level_micro_batches_keep_the_lemma(seed: int, stages: int) -> None:
    adapters = draw(seed, adapters=3, batches=4)
    settings = MicroBatchSettings(capacity=120, stages=stages, is_level=True)
    schedule = schedule_micro_batches(adapters, settings=settings)
    assert not find_schedule_faults(schedule, adapters, capacity=120, multiple=1, stages=stages)
