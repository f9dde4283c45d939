"""Requests that wait, fair between adapters: the adapter that has been served the fewest tokens is next.

Source: virtual token counters, Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), section 4.2: an
adapter's counter grows with the tokens it is served; one that comes back after a pause is lifted to the least counter
of those that wait, so that a pause saves up no claims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cohort.serving.sequence import AdapterRef, LiveSequence

__all__ = ["GENERATED_WEIGHT", "FairQueue"]

GENERATED_WEIGHT = 2
"""A generated token counts as this many tokens of a prompt: it takes a pass of its own."""


class FairQueue:
    """First come, first served within an adapter."""

    def __init__(self) -> None:
        self._waiting: dict[AdapterRef, deque[LiveSequence]] = {}
        self._counters: dict[AdapterRef, int] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[LiveSequence]:
        return (sequence for own in self._waiting.values() for sequence in own)

    def add(self, sequence: LiveSequence) -> None:
        adapter = sequence.request.adapter
        if adapter not in self._waiting:
            least = min((self._counters[other] for other in self._waiting), default=0)
            self._counters[adapter] = max(self._counters.get(adapter, 0), least)
            self._waiting[adapter] = deque()
        self._waiting[adapter].append(sequence)
        self._num_waiting += 1

    def charge(self, adapter: AdapterRef, num_tokens: int) -> None:
        """Count tokens that an adapter was served."""
        self._counters[adapter] = self._counters.get(adapter, 0) + num_tokens

    def fairest_first(self) -> list[tuple[int, LiveSequence]]:
        """Return the first request of each adapter that waits, with the adapter's counter, the least served first."""
        heads = [(self._counters[adapter], own[0]) for adapter, own in self._waiting.items()]
        return sorted(heads, key=lambda head: (head[0], head[1].number))

    def remove(self, sequence: LiveSequence) -> None:
        adapter = sequence.request.adapter
        own = self._waiting[adapter]
        own.remove(sequence)
        self._num_waiting -= 1
        if not own:
            del self._waiting[adapter]
            self._forget_idle()

    def _forget_idle(self) -> None:
        # counters of adapters that do not wait only matter while they are above the least of those that do
        if len(self._counters) > 4 * len(self._waiting) + 1024:
            self._counters = {adapter: self._counters[adapter] for adapter in self._waiting}
