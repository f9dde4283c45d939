"""Runs of consecutive samples: complete, in order, within capacity, as few and as equal as can be."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.pipelines.microbatch.ordered_packing import ordered_pack
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens


def samples_of(rng: random.Random, *, count: int, most: int) -> list[PipelineSample]:
    return [PipelineSample(rng.randrange(3), 0, place, rng.randint(1, most)) for place in range(count)]


@pytest.mark.parametrize("seed", range(30))
def test_micro_batches_are_runs_as_few_and_as_short_as_can_be(seed: int) -> None:
    rng = random.Random(seed)
    multiple, capacity = rng.choice([(1, 40), (8, 48), (16, 64)])
    samples = samples_of(rng, count=rng.randrange(12), most=40)
    bins = ordered_pack(samples, capacity=capacity, multiple=multiple)
    assert [sample for own in bins for sample in own] == sorted(samples)
    longest = max((padded_tokens(own, multiple) for own in bins), default=0)
    assert longest <= capacity
    best = _best(sorted(samples), len(bins), multiple)
    if samples:
        assert longest == best
        assert len(bins) == 1 or _best(sorted(samples), len(bins) - 1, multiple) > capacity


def _best(samples: list[PipelineSample], count: int, multiple: int) -> float:
    """Return the shortest longest run of all cuts into ``count`` runs."""
    if count <= 0:
        return float("inf")
    best = [0.0] + [float("inf")] * len(samples)
    for _ in range(count):
        best = [0.0] + [
            min(max(best[begin], padded_tokens(samples[begin:end], multiple)) for begin in range(end))
            for end in range(1, len(samples) + 1)
        ]
    return best[-1]


def test_a_sample_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="a sample of 9 tokens is longer than the capacity of 8"):
        ordered_pack([PipelineSample(0, 0, 0, 9)], capacity=8)
