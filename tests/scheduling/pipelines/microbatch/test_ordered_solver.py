"""Integer programs that keep each adapter's order: fewest micro-batches, then the last or the longest short."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.pipelines.microbatch.ordered_packing import ordered_pack
from cohort.scheduling.pipelines.microbatch.ordered_solver import pack_in_order
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

QUICK = PackingLimits(work_limit=0.02)


def samples_of(*lengths: tuple[int, ...]) -> list[PipelineSample]:
    """Samples of adapters 0, 1, ... with these lengths, in their order."""
    return [PipelineSample(a, 0, place, n) for a, own in enumerate(lengths) for place, n in enumerate(own)]


def tokens(bins: list[list[PipelineSample]]) -> list[int]:
    return [sum(sample.length for sample in own) for own in bins]


def test_adapters_share_micro_batches_where_runs_of_one_sequence_cannot() -> None:
    samples = samples_of((6, 6), (4, 4))
    # one after the other they take three micro-batches, side by side two
    assert tokens(ordered_pack(samples, capacity=10)) == [6, 6, 8]
    assert tokens(pack_in_order(samples, capacity=10)) == [10, 10]


def test_the_last_is_left_empty_or_all_are_level() -> None:
    samples = samples_of((5, 5, 5), (5,))
    assert tokens(pack_in_order(samples, capacity=15)) == [15, 5]
    assert tokens(pack_in_order(samples, capacity=15, is_level=True)) == [10, 10]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_level", [False, True])
def test_order_is_kept_and_the_answer_is_no_worse_than_the_greedy_one(seed: int, is_level: bool) -> None:
    rng = random.Random(seed)
    lengths = [tuple(rng.randint(1, 30) for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(1, 3))]
    samples = samples_of(*lengths)
    packed = pack_in_order(samples, capacity=48, multiple=4, is_level=is_level, limits=QUICK)
    assert sorted(s for own in packed for s in own) == sorted(samples)
    assert all(padded_tokens(own, 4) <= 48 for own in packed)
    for adapter in range(len(lengths)):
        places = [s.place for own in packed for s in sorted(own) if s.adapter == adapter]
        assert places == sorted(places)
    greedy = ordered_pack(samples, capacity=48, multiple=4)
    sizes = [
        (len(bins), max(padded_tokens(own, 4) for own in bins) if is_level else padded_tokens(bins[-1], 4))
        for bins in (packed, greedy)
    ]
    assert sizes[0] <= sizes[1]
    assert packed == pack_in_order(samples, capacity=48, multiple=4, is_level=is_level, limits=QUICK)


def test_no_work_is_the_greedy_answer_and_a_sample_alone_may_be_too_long() -> None:
    samples = samples_of((6, 6), (4, 4))
    assert pack_in_order(samples, capacity=10, limits=PackingLimits(work_limit=0)) == ordered_pack(samples, capacity=10)
    with pytest.raises(ValueError, match="longer than the capacity"):
        pack_in_order(samples_of((11,)), capacity=10)
