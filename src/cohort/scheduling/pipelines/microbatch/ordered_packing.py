"""Samples of one global batch into micro-batches that keep their order, as equally long as that allows.

A trial's gradients are summed sample by sample. On a CPU that sum has the bits of one process only in the trial's own
order, so each micro-batch is a run of consecutive samples; the fewest that capacity allows, cut where the longest is
shortest.
"""

from __future__ import annotations

from collections.abc import Sequence

from cohort.scheduling.pipelines.microbatch.packing import Bins
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

__all__ = ["ordered_pack"]


def ordered_pack(samples: Sequence[PipelineSample], *, capacity: int, multiple: int = 1) -> Bins:
    """Return runs of the samples, by adapter and place, of at most ``capacity`` padded tokens; deterministic.

    Raises:
        ValueError: a sample alone is longer than ``capacity``.
    """
    ordered = sorted(samples)
    for sample in ordered:
        if padded_tokens([sample], multiple) > capacity:
            raise ValueError(f"a sample of {sample.length} tokens is longer than the capacity of {capacity}")
    best = _cut(ordered, most=capacity, multiple=multiple)
    # the least bound that takes no more micro-batches
    low, high = 1, capacity
    while low < high:
        middle = (low + high) // 2
        found = _cut(ordered, most=middle, multiple=multiple)
        if len(found) > len(best) or any(padded_tokens(own, multiple) > middle for own in found):
            low = middle + 1
        else:
            best, high = found, middle
    return best


def _cut(ordered: Sequence[PipelineSample], *, most: int, multiple: int) -> Bins:
    """Return runs, each as long as ``most`` allows; a longer sample stands alone."""
    bins: Bins = []
    for sample in ordered:
        if bins and padded_tokens([*bins[-1], sample], multiple) <= most:
            bins[-1].append(sample)
        else:
            bins.append([sample])
    return bins
