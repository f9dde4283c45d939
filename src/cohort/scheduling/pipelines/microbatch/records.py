"""Samples, micro-batches and schedules of a pipeline, and the lemma that a schedule must keep.

**Bubble lemma.** If a sample of an adapter's global batch j runs in micro-batch k, none of its later batches may run
before micro-batch k + S: S - 1 others stand between, in which each of the S stages finishes k's backward pass and steps
the adapter's optimizer. With one stage that says: two batches of an adapter never share a micro-batch.

Source: LoRAFusion 4.2.2; the distance is S where the paper's text has S - 1, since the optimizer steps in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "AdapterBatches",
    "MicroBatch",
    "PipelineSample",
    "find_bubbles",
    "find_schedule_faults",
    "padded_tokens",
    "with_no_ops",
]


@dataclass(frozen=True, order=True)
class PipelineSample:
    """One sample of one adapter's global batch."""

    adapter: int
    batch: int
    place: int
    length: int


@dataclass(frozen=True, kw_only=True)
class AdapterBatches:
    """What one adapter trains on: lengths of the samples of each optimizer step, in order."""

    adapter: int
    lengths: tuple[tuple[int, ...], ...]

    def samples(self, batch: int) -> tuple[PipelineSample, ...]:
        """Return the samples of one global batch; none past the last."""
        if batch >= len(self.lengths):
            return ()
        return tuple(PipelineSample(self.adapter, batch, i, n) for i, n in enumerate(self.lengths[batch]))

    @property
    def mean_length(self) -> float:
        count = sum(len(batch) for batch in self.lengths)
        return sum(sum(batch) for batch in self.lengths) / count if count else 0.0


@dataclass(frozen=True)
class MicroBatch:
    """Samples that pass the pipeline together; without any it is a no-op."""

    samples: tuple[PipelineSample, ...] = ()

    def tokens(self, multiple: int) -> int:
        return padded_tokens(self.samples, multiple)


def padded_tokens(samples: Sequence[PipelineSample], multiple: int) -> int:
    """Return the tokens of ``samples`` in one micro-batch, each adapter's share padded to ``multiple``."""
    # Each adapter's share is padded by itself: its rows are a segment of their own in the kernels.
    shares: Counter[int] = Counter()
    for sample in samples:
        shares[sample.adapter] += sample.length
    return sum(math.ceil(share / multiple) * multiple for share in shares.values())


def find_bubbles(schedule: Sequence[MicroBatch], *, stages: int, start: int = 0, stop: int | None = None) -> int:
    """Return how often the lemma is broken: (adapter, place) pairs among places ``start`` to ``stop`` whose batch
    begins before an earlier one of the adapter is through, and micro-batches that two batches of one share.
    """
    broken = 0
    for place in range(max(start, 0), len(schedule) if stop is None else min(stop, len(schedule))):
        here: dict[int, int] = {}
        for sample in schedule[place].samples:
            broken += sample.batch != here.setdefault(sample.adapter, sample.batch)
            here[sample.adapter] = max(here[sample.adapter], sample.batch)
        # Micro-batches less than `stages` apart are in the pipeline at the same time.
        for before in range(max(0, place - stages + 1), place):
            early = {s.adapter for s in schedule[before].samples if s.batch < here.get(s.adapter, -1)}
            broken += len(early)
    return broken


def with_no_ops(schedule: Sequence[MicroBatch], *, stages: int) -> tuple[MicroBatch, ...]:
    """Return the schedule with the fewest no-ops that keep the lemma, the order of micro-batches unchanged."""
    out: list[MicroBatch] = []
    last: dict[int, dict[int, int]] = {}
    for micro_batch in schedule:
        earliest = max(
            (
                place + stages
                for sample in micro_batch.samples
                for batch, place in last.get(sample.adapter, {}).items()
                if batch < sample.batch
            ),
            default=0,
        )
        out += [MicroBatch()] * max(0, earliest - len(out))
        for sample in micro_batch.samples:
            # Batches of an adapter run in order, so only its latest ones can be too near.
            mine = last.setdefault(sample.adapter, {})
            mine[sample.batch] = len(out)
            for batch in [batch for batch in mine if batch < sample.batch - 1]:
                del mine[batch]
        out.append(micro_batch)
    return tuple(out)


def find_schedule_faults(
    schedule: Sequence[MicroBatch], adapters: Sequence[AdapterBatches], *, capacity: int, multiple: int, stages: int
) -> tuple[str, ...]:
    """Return everything that is wrong with a schedule, in words; written apart from what makes schedules."""
    # Shares no function with the scheduler: a mistake in a common one would hide itself here.
    faults = []
    wanted = Counter(s for adapter in adapters for j in range(len(adapter.lengths)) for s in adapter.samples(j))
    found = Counter(sample for micro_batch in schedule for sample in micro_batch.samples)
    if wanted != found:
        faults.append(f"missing {sorted((wanted - found).elements())}, too many {sorted((found - wanted).elements())}")
    for place, micro_batch in enumerate(schedule):
        if (tokens := micro_batch.tokens(multiple)) > capacity:
            faults.append(f"micro-batch {place} has {tokens} tokens, more than {capacity}")
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for place, micro_batch in enumerate(schedule):
        for sample in micro_batch.samples:
            first, _ = spans.get((sample.adapter, sample.batch), (place, place))
            spans[sample.adapter, sample.batch] = (first, place)
    for (adapter, batch), (first, _) in sorted(spans.items()):
        for (other, earlier), (_, end) in spans.items():
            if other == adapter and earlier < batch and first < end + stages:
                faults.append(
                    f"batch {batch} of adapter {adapter} begins in {first}, before {end + stages}: batch {earlier} "
                    f"runs until {end}"
                )
    return tuple(faults)
