"""95 % intervals of what was measured on rows: Wilson's for shares, the bootstrap by rows for everything else.

An interval says how far a number could lie from what other rows of the same kind would give. It does not cover the
choice among many trials: the best of 60 is partly the luckiest.

Shapes:  N rows · B resamples
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cohort.core.seeds import derive_seed

__all__ = [
    "CONFIDENCE",
    "Interval",
    "difference_interval",
    "mean_interval",
    "share_difference_interval",
    "share_interval",
]

CONFIDENCE = 0.95
_Z = 1.959963984540054
"""The standard normal's 97.5 % quantile."""
# from seed to seed the ends of an interval vary by 1.5 % of its width (standard deviation, for normal means:
# sqrt(0.025 * 0.975 / 2000) / 0.0584 / 3.92)
_NUM_RESAMPLES = 2000
# entries of one block of resampled rows: 16 MiB of indices
_BLOCK_ENTRIES = 1 << 21


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The ends of a 95 % interval, in the unit of its number."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def share_interval(num_hits: int, num_rows: int) -> Interval:
    """Return Wilson's interval of ``num_hits / num_rows``: it stays within 0 and 1, and has a width at 0 % and 100 %.

    Source: E. B. Wilson, 1927. Without rows nothing is known: 0 to 1.

    Raises:
        ValueError: hits below 0, or more hits than rows.
    """
    if not 0 <= num_hits <= num_rows:
        raise ValueError(f"{num_hits} hits of {num_rows} rows: there must be 0 to {num_rows}")
    if num_rows == 0:
        return Interval(low=0.0, high=1.0)
    share, extra = num_hits / num_rows, _Z * _Z / num_rows
    middle = (share + extra / 2) / (1 + extra)
    half = _Z * math.sqrt(share * (1 - share) / num_rows + extra / (4 * num_rows)) / (1 + extra)
    # at the ends the exact bound is 0 or 1, which rounding may miss by one bit
    low = 0.0 if num_hits == 0 else max(0.0, middle - half)
    return Interval(low=low, high=1.0 if num_hits == num_rows else min(1.0, middle + half))


def mean_interval(values: Sequence[float], weights: Sequence[float] | None = None, *, seed: int = 0) -> Interval | None:
    """Return the bootstrap interval of ``sum(values) / sum(weights)`` over rows drawn with replacement.

    Args:
        values: By row: its metric, or the sum of its token losses.
        weights: By row: its trained tokens, for a loss per token; 1 for each row when None.
        seed: Chooses the resamples; equal arguments give equal ends.

    Returns:
        None for fewer than two rows, and where a value is not finite.
    """
    values_N = np.asarray(values, dtype=np.float64)
    weights_N = np.ones_like(values_N) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(values_N) != len(weights_N):
        raise ValueError(f"{len(values_N)} values but {len(weights_N)} weights: there must be one for each row")
    if len(values_N) < 2 or not np.isfinite(values_N).all():
        return None
    means_B = np.concatenate(
        [
            values_N[rows_BN].sum(axis=1) / weights_N[rows_BN].sum(axis=1)
            for rows_BN in _resampled(len(values_N), seed=seed)
        ]
    )
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means_B, [tail, 100 - tail])
    return Interval(low=float(low), high=float(high))


def difference_interval(
    values: Sequence[float],
    others: Sequence[float],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
) -> Interval | None:
    """Return the bootstrap interval of the difference of two means on the same rows, ``values`` less ``others``.

    Paired by row: rows that are hard for both add nothing to it, so it is narrower than two intervals suggest. Where it
    does not hold 0, the two differ by more than the choice of rows explains.

    Args:
        values, others: By row, in the same order.
        weights, seed: As for :func:`mean_interval`.
    """
    if len(values) != len(others):
        raise ValueError(f"{len(values)} values and {len(others)} others: both must be of the same rows")
    return mean_interval([a - b for a, b in zip(values, others, strict=True)], weights, seed=seed)


def share_difference_interval(hits: Sequence[float], others: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of two shares of the same rows, ``hits`` less ``others`` (each 0 or 1).

    It has a width even where both agree on every row, which resampling the rows would miss. None without rows.

    Source: R. G. Newcombe, Statistics in Medicine 17 (1998), method 10.
    """
    pairs = list(zip(hits, others, strict=True))
    if not pairs:
        return None
    num_rows = len(pairs)
    both, one, other, neither = (pairs.count(kind) for kind in ((1, 1), (1, 0), (0, 1), (0, 0)))
    first, second = share_interval(both + one, num_rows), share_interval(both + other, num_rows)
    share, share_2 = (both + one) / num_rows, (both + other) / num_rows
    spread = (both + one) * (other + neither) * (both + other) * (one + neither)
    agreement: float = both * neither - one * other
    # his correction: an agreement that a row or two make says nothing
    agreement = max(0.0, agreement - num_rows / 2) if agreement > 0 else agreement
    phi = agreement / math.sqrt(spread) if spread else 0.0

    def half(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    gap = share - share_2
    low = gap - half(share - first.low, second.high - share_2)
    return Interval(low=low, high=gap + half(first.high - share, share_2 - second.low))


def _resampled(num_rows: int, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of all resamples [B, N] in blocks, which bound the memory."""
    rng = np.random.Generator(np.random.PCG64(derive_seed("bootstrap", seed, num_rows)))
    per_block = max(1, _BLOCK_ENTRIES // num_rows)
    for start in range(0, _NUM_RESAMPLES, per_block):
        yield rng.integers(0, num_rows, size=(min(per_block, _NUM_RESAMPLES - start), num_rows))
