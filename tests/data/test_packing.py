"""Samples into streams and micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.errors import SegmentError
from cohort.data.packing import LEAST_ROWS, ROW_MULTIPLE, UNTRAINED, SlotSample, pack, split_micro_batches
from cohort.data.tokenised import Sample


def sample(sample_id: int, tokens: list[int], trained: list[bool]) -> Sample:
    return Sample(
        sample_id=sample_id, tokens=np.array(tokens, dtype=np.int32), trained=np.array(trained, dtype=np.bool_)
    )


def test_targets_are_the_next_trained_token_and_never_cross_samples() -> None:
    first = sample(0, [5, 6, 7], [False, True, True])
    second = sample(1, [8, 9], [False, True])
    batch = pack([SlotSample(slot=0, sample=first), SlotSample(slot=2, sample=second)], num_slots=4)
    assert batch.targets_T[:5].tolist() == [6, 7, UNTRAINED, 9, UNTRAINED]
    assert batch.tokens_T[:5].tolist() == [5, 6, 7, 8, 9]
    assert batch.positions_T[:5].tolist() == [0, 1, 2, 0, 1]
    assert batch.sequence_offsets == (0, 3, 5)
    assert batch.segments.offsets == (0, 3, 3, 5, 5)
    assert (batch.targets_T[5:] == UNTRAINED).all()


@given(st.lists(st.integers(2, 60), min_size=1, max_size=12))
def test_a_stream_ends_in_filler_to_a_multiple(lengths: list[int]) -> None:
    entries = [SlotSample(slot=0, sample=sample(i, [1] * n, [False] + [True] * (n - 1))) for i, n in enumerate(lengths)]
    batch = pack(entries, num_slots=1)
    assert batch.num_rows % ROW_MULTIPLE == 0
    assert batch.num_rows == max(LEAST_ROWS, -(-sum(lengths) // ROW_MULTIPLE) * ROW_MULTIPLE)
    assert batch.segments.num_adapter_rows == sum(lengths)


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 100))
def test_micro_batches_cover_all_samples_in_order_within_the_budget(lengths: list[int], budget: int) -> None:
    runs = split_micro_batches(lengths, token_budget=budget)
    assert [index for run in runs for index in run] == list(range(len(lengths)))
    for run in runs:
        assert sum(lengths[i] for i in run) <= budget or len(run) == 1
    # as few as filling one after the other makes, and none could be shorter
    filled, tokens = 0, budget + 1
    for length in lengths:
        filled, tokens = (filled, tokens + length) if tokens + length <= budget else (filled + 1, length)
    assert len(runs) == filled
    longest = max((sum(lengths[i] for i in run) for run in runs), default=0)
    if len(runs) > 1 and max(lengths) < longest <= budget:
        assert len(split_micro_batches(lengths, token_budget=longest - 1)) > len(runs)


def test_a_step_that_is_little_more_than_the_budget_becomes_two_passes_of_one_size() -> None:
    runs = split_micro_batches([133] * 32, token_budget=4096)
    assert runs == [range(16), range(16, 32)]


def test_unsorted_slots_and_empty_streams_are_refused() -> None:
    one = sample(0, [1, 2], [False, True])
    with pytest.raises(SegmentError, match="sorted by slot"):
        pack([SlotSample(slot=1, sample=one), SlotSample(slot=0, sample=one)], num_slots=2)
    with pytest.raises(SegmentError, match="sorted by slot"):
        pack([SlotSample(slot=-1, sample=one), SlotSample(slot=0, sample=one)], num_slots=2)
    with pytest.raises(SegmentError, match="at least one sample"):
        pack([], num_slots=1)


def test_dropout_keys_stay_with_their_rows() -> None:
    one = sample(0, [1, 2], [False, True])
    keyed = SlotSample(slot=1, sample=one, row_keys=np.array([11, 12], dtype=np.int64))
    batch = pack([SlotSample(slot=0, sample=one), keyed], num_slots=2)
    assert batch.row_keys_T is not None
    assert batch.row_keys_T[:4].tolist() == [0, 0, 11, 12]
    assert pack([SlotSample(slot=0, sample=one)], num_slots=2).row_keys_T is None
    assert batch.row_keys_T.dtype is torch.int64
