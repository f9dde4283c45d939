"""Samples of one global batch into micro-batches by first fit, without a solver: what every packing begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

__all__ = ["Bins", "PackingLimits", "emptiest_last", "first_fit_decreasing"]

Bins = list[list[PipelineSample]]


@dataclass(frozen=True, kw_only=True)
class PackingLimits:
    """Deterministic work of each of the two programs (about seconds); 0 asks no solver."""

    work_limit: float = 0.3


def first_fit_decreasing(samples: Sequence[PipelineSample], *, capacity: int, multiple: int = 1) -> Bins:
    """Return micro-batches where each sample, the longest first, stands in the first one that has room.

    Raises:
        ValueError: a sample alone is longer than ``capacity``.
    """
    bins: Bins = []
    # Longest first: first-fit decreasing needs at most 11/9 of the fewest bins.
    for sample in sorted(samples, key=lambda sample: (-sample.length, sample)):
        if padded_tokens([sample], multiple) > capacity:
            raise ValueError(f"a sample of {sample.length} tokens does not fit in a micro-batch of {capacity}")
        for own in bins:
            if padded_tokens([*own, sample], multiple) <= capacity:
                own.append(sample)
                break
        else:
            bins.append([sample])
    return emptiest_last(bins, multiple)


def emptiest_last(bins: Bins, multiple: int) -> Bins:
    return sorted((sorted(own) for own in bins), key=lambda own: (-padded_tokens(own, multiple), own))
