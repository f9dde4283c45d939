"""How many requests a minute someone may send: a bucket that fills evenly and holds a minute's worth."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["RateLimits"]

_MOST_KNOWN = 100_000


@dataclass
class _Bucket:
    tokens: float
    at: float


class RateLimits:
    """Counts by the key that it is given. Use it from one thread; ``now`` is in seconds and never goes back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def take(self, who: Hashable, *, per_minute: int) -> float:
        """Count a request; return 0 if it may pass, else the seconds until one may."""
        now = self._now()
        bucket = self._buckets.setdefault(who, _Bucket(tokens=float(per_minute), at=now))
        self._buckets.move_to_end(who)
        # those who ask least often are forgotten: their buckets are full again by then
        while len(self._buckets) > _MOST_KNOWN:
            self._buckets.popitem(last=False)
        bucket.tokens = min(float(per_minute), bucket.tokens + (now - bucket.at) * per_minute / 60.0)
        bucket.at = now
        if bucket.tokens >= 1.0:
            bucket.tokens -= 1.0
            return 0.0
        return (1.0 - bucket.tokens) * 60.0 / per_minute if per_minute else 60.0
