"""A contender of a comparison, from what it has on each row."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.core.statistics.estimates import RowValues
from cohort.core.statistics.row_estimates import difference, estimate
from cohort.runs.results.comparison import Contender

__all__ = ["measured_contender"]


def measured_contender(
    rows: Mapping[str, RowValues],
    *,
    trial_id: int | None,
    step: int | None,
    winner: Mapping[str, RowValues] | None,
) -> Contender:
    """Return the contender with its intervals.

    Args:
        rows: By name, the loss and every metric.
        winner: The same of the winner; None for the winner itself.
    """
    values = {name: estimate(own) for name, own in rows.items()}
    minus = {} if winner is None else {name: difference(winner[name], own) for name, own in rows.items()}
    return Contender(trial_id=trial_id, step=step, values=values, winner_minus=minus)
