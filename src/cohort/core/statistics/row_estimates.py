"""From what an adapter has on each row to a number with its interval: alone, and against another adapter."""

from __future__ import annotations

from cohort.core.statistics.bootstrap_intervals import difference_interval, mean_interval
from cohort.core.statistics.estimates import Estimate, RowValues
from cohort.core.statistics.intervals import Interval, share_difference_interval, share_interval

__all__ = ["difference", "estimate"]


def estimate(rows: RowValues) -> Estimate:
    """Return the value on ``rows`` with its interval: Wilson's for a share, else the bootstrap by rows."""
    if rows.are_hits:
        interval: Interval | None = share_interval(round(sum(rows.values)), len(rows.values))
    else:
        interval = mean_interval(rows.values, rows.weights)
    return _with(interval, rows.value, num_rows=len(rows.values))


def difference(first: RowValues, second: RowValues) -> Estimate:
    """Return the first one's value minus the second one's, with its interval; both have the same rows."""
    if first.are_hits and second.are_hits:
        interval = share_difference_interval(first.values, second.values)
    else:
        interval = difference_interval(first.values, second.values, first.weights)
    return _with(interval, first.value - second.value, num_rows=len(first.values))


def _with(interval: Interval | None, value: float, *, num_rows: int) -> Estimate:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Estimate(value=value, low=low, high=high, num_rows=num_rows)
