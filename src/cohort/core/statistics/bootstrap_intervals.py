"""95 % intervals of means by the bootstrap: rows are drawn with replacement, many times.

Shapes:  N rows · B resamples
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.core.seeds import derive_seed
from cohort.core.statistics.intervals import CONFIDENCE, Interval

__all__ = ["difference_interval", "mean_interval"]

# from seed to seed the ends of an interval vary by 1.5 % of its width (standard deviation, for normal means:
# sqrt(0.025 * 0.975 / 2000) / 0.0584 / 3.92)
_NUM_RESAMPLES = 2000
# entries of one block of resampled rows: 16 MiB of indices
_BLOCK_ENTRIES = 1 << 21


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


def _resampled(num_rows: int, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of all resamples [B, N] in blocks, which bound the memory."""
    rng = np.random.Generator(np.random.PCG64(derive_seed("bootstrap", seed, num_rows)))
    per_block = max(1, _BLOCK_ENTRIES // num_rows)
    for start in range(0, _NUM_RESAMPLES, per_block):
        yield rng.integers(0, num_rows, size=(min(per_block, _NUM_RESAMPLES - start), num_rows))
