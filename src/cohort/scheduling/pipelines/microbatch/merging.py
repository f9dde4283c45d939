"""Merging: samples of the next batch fill what the last micro-batch of a batch leaves, where the lemma allows it.

A move that breaks the lemma more often than before is taken back.

Source: LoRAFusion 4.2.2. Where an adapter's samples keep their order, its first ones of the next batch move, and none
that stands behind one that cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cohort.scheduling.pipelines.microbatch.packing import Bins
from cohort.scheduling.pipelines.microbatch.records import MicroBatch, PipelineSample, find_bubbles, padded_tokens

__all__ = ["merge_batches"]


def merge_batches(packed: list[Bins], *, capacity: int, stages: int, multiple: int, keeps_order: bool) -> None:
    """Fill each unit's last micro-batch from the next unit, in place.

    Args:
        packed: The micro-batches of each unit, a batch of a group of adapters, in their order of execution.
        capacity: Most padded tokens of a micro-batch.
        stages: Of the lemma.
        multiple: What each adapter's tokens in a micro-batch are padded to.
        keeps_order: Whether each adapter's samples pass in their order: then the first ones of the next unit move,
            else the longest of its last micro-batch, which is the emptiest.
    """
    for index in range(len(packed) - 1):
        unit, following = packed[index], packed[index + 1]
        # A micro-batch that is emptied brings others nearer to each other, by one and only around it: so the lemma is
        # counted as far as the stages reach on both sides, not over the whole schedule.
        before = _last(packed[:index], unit[:-1], count=stages)
        after = _first(packed, index + 2, count=stages)
        place = 0 if keeps_order else -1
        stuck: set[int] = set()

        def bubbles(unit: Bins = unit, following: Bins = following, before: Bins = before, after: Bins = after) -> int:
            near = [MicroBatch(tuple(own)) for own in (*before, unit[-1], *following, *after)]
            return find_bubbles(near, stages=stages)

        for sample in _movable(following[place], keeps_order=keeps_order):
            if sample.adapter in stuck:
                continue
            fits = padded_tokens([*unit[-1], sample], multiple) <= capacity
            # No no-op could separate two batches of one adapter within a micro-batch.
            if fits and _may_join(sample, [*before, unit[-1]][-stages:]):
                broken = bubbles()
                unit[-1].append(sample)
                following[place].remove(sample)
                emptied = not following[place]
                if emptied:
                    following.pop(place)
                if bubbles() <= broken:
                    if emptied:
                        break
                    continue
                if emptied:
                    following.insert(0 if keeps_order else len(following), [])
                following[place].append(sample)
                following[place].sort()
                unit[-1].remove(sample)
            if keeps_order:
                stuck.add(sample.adapter)
        if not following:
            # its samples stand in the unit before, whose last micro-batch goes on being filled
            following.append(unit.pop())


def _movable(bin_: Sequence[PipelineSample], *, keeps_order: bool) -> Iterator[PipelineSample]:
    yield from sorted(bin_) if keeps_order else sorted(bin_, key=lambda sample: -sample.length)


def _may_join(sample: PipelineSample, bins: Sequence[Sequence[PipelineSample]]) -> bool:
    """Return whether no earlier batch of the sample's adapter runs in ``bins``, the last of which it would join."""
    return not any(s.adapter == sample.adapter and s.batch < sample.batch for own in bins for s in own)


def _last(units: Sequence[Bins], more: Bins, *, count: int) -> Bins:
    """Return the last ``count`` micro-batches of ``units`` and ``more``, in order."""
    found = list(more)
    for bins in reversed(units):
        if len(found) >= count:
            break
        found = [*bins, *found]
    return found[-count:]


def _first(units: Sequence[Bins], start: int, *, count: int) -> Bins:
    """Return the first ``count`` micro-batches of ``units`` from ``start`` on."""
    found: Bins = []
    for index in range(start, len(units)):
        if len(found) >= count:
            break
        found += units[index]
    return found[:count]
