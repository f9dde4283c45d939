"""When the tokens of a request come, as clients see it. It needs no torch and no Prometheus."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from cohort.serving.step_output import StepOutput

__all__ = ["BUCKET_SECONDS", "IntervalCounts", "RequestTimes", "SecondsSink"]

BUCKET_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper edges of the buckets that seconds are counted in; what is longer falls into one more."""


class SecondsSink(Protocol):
    """Takes seconds, such as a histogram."""

    def observe(self, amount: float) -> None: ...


class IntervalCounts:
    """Seconds between the tokens of a sequence, counted by bucket: one is added for every token, by one thread.

    ``prometheus_client`` takes two locks for each observation, which at 10,000 tokens a second is a fifth of a core.

    Attributes:
        counts: By bucket.
        total_seconds: Of all.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_SECONDS) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def add_counts(self, counts: Sequence[int], total_seconds: float) -> None:
        """Add what someone else has counted."""
        for place, count in enumerate(counts):
            self.counts[place] += count
        self.total_seconds += total_seconds


class RequestTimes:
    """The times of one request."""

    def __init__(self, first: SecondsSink, each: IntervalCounts, whole: SecondsSink, *, begun: float) -> None:
        """Count from ``begun`` on, by ``time.perf_counter``."""
        self._first, self._each, self._whole = first, each, whole
        self._begun = begun
        self._latest: dict[int, float] = {}

    def heard(self, arrived: Sequence[tuple[int, StepOutput]]) -> None:
        """Count what has just come together: pairs of a sequence's place in the request and an output."""
        now = time.perf_counter()
        for place, output in arrived:
            if output.token is not None:
                if (latest := self._latest.get(place)) is None:
                    self._first.observe(now - self._begun)
                else:
                    self._each.add(now - latest)
                self._latest[place] = now
            if output.finish is not None:
                self._whole.observe(now - self._begun)
