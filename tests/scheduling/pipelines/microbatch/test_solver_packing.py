"""The solver packs samples in no more micro-batches than first-fit decreasing, and leaves the last one emptier."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.pipelines.microbatch.packing import PackingLimits, first_fit_decreasing
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens
from cohort.scheduling.pipelines.microbatch.solver_packing import pack_samples

QUICK = PackingLimits(work_limit=0.02)


def sample(adapter: int, batch: int, length: int = 1, place: int = 0) -> PipelineSample:
    return PipelineSample(adapter, batch, place, length)


def test_packing_takes_fewest_bins_and_leaves_the_last_emptiest() -> None:
    # first-fit decreasing needs three bins: 6+5 do not fit beside the 4s
    lengths = [6, 5, 5, 4, 4, 4, 2]
    samples = [sample(0, 0, n, i) for i, n in enumerate(lengths)]
    greedy = first_fit_decreasing(samples, capacity=15)
    solved = pack_samples(samples, capacity=15)
    assert len(solved) == 2 <= len(greedy)
    assert sorted(s for own in solved for s in own) == sorted(samples)
    lengths = [9, 8, 2, 1, 1, 1]
    solved = pack_samples([sample(0, 0, n, i) for i, n in enumerate(lengths)], capacity=12)
    assert [sum(s.length for s in own) for own in solved] == [12, 10]


@pytest.mark.parametrize("seed", range(12))
def test_the_solver_is_never_worse_than_the_greedy_answer(seed: int) -> None:
    rng = random.Random(seed)
    samples = [sample(rng.randrange(3), 0, rng.randint(1, 50), i) for i in range(rng.randint(2, 18))]
    greedy = first_fit_decreasing(samples, capacity=64, multiple=4)
    packed = pack_samples(samples, capacity=64, multiple=4, limits=QUICK)
    assert sorted(s for own in packed for s in own) == sorted(samples)
    assert all(padded_tokens(own, 4) <= 64 for own in packed)
    sizes = [(len(bins), padded_tokens(bins[-1], 4)) for bins in (packed, greedy)]
    assert sizes[0] <= sizes[1]


def test_no_work_is_the_greedy_answer_and_a_sample_alone_may_be_too_long() -> None:
    samples = [sample(0, 0, n, i) for i, n in enumerate([6, 5, 5, 4, 4, 4, 2])]
    assert pack_samples(samples, capacity=15, limits=PackingLimits(work_limit=0)) == first_fit_decreasing(
        samples, capacity=15
    )
    assert pack_samples([], capacity=15) == first_fit_decreasing([], capacity=15)
    with pytest.raises(ValueError, match="16"):
        pack_samples([sample(0, 0, 16)], capacity=15)


def test_the_same_samples_make_the_same_micro_batches_in_any_order() -> None:
    samples = [sample(i % 3, 0, 3 + 7 * i % 20, i) for i in range(14)]
    packed = pack_samples(samples, capacity=64, multiple=4, limits=QUICK)
    assert packed == pack_samples(samples, capacity=64, multiple=4, limits=QUICK)
    shuffled = pack_samples(samples[::-1], capacity=64, multiple=4, limits=QUICK)
    assert [padded_tokens(own, 4) for own in shuffled] == [padded_tokens(own, 4) for own in packed]
