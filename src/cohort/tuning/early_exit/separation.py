"""Whether rows tell two trials apart: the bootstrap over evaluation rows that both were measured on.

A mean over few rows is partly the luck of these rows. A comparison therefore asks how often another draw of rows would
have turned it round, and ends a trial only if that is rare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from cohort.core.events import Evaluated
from cohort.tuning.objective_metric import ObjectiveMetric

__all__ = ["FEWEST_ROWS", "Standing", "chances", "numbers_of_chance"]

FEWEST_ROWS = 8
"""With fewer rows no interval is worth its name, and no comparison ends a trial."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a trial is compared by at one evaluation. Smaller is better in all of it.

    Attributes:
        cost: The objective metric, negative where more is better.
        rows: What each row adds to ``cost``; empty where it is unknown.
        loss: The validation loss, which settles equal costs.
        loss_rows: What each row adds to ``loss``, where it may settle costs that rows do not tell apart; else empty.
    """

    trial_id: int
    cost: float
    loss: float
    rows: tuple[float, ...] = ()
    loss_rows: tuple[float, ...] = ()

    @property
    def order(self) -> tuple[float, float, int]:
        """A sort key: that of the better trial is smaller, and no two trials share one."""
        return (self.cost, self.loss, self.trial_id)

    def gone_on(self, before: Standing, weight: float) -> Standing:
        """Return where the trial would stand if it went on as since ``before``, ``weight`` times as far."""

        def ahead(now: float, then: float) -> float:
            return now + weight * (now - then)

        def rows_ahead(now: tuple[float, ...], then: tuple[float, ...]) -> tuple[float, ...]:
            # without the same rows at both it can be ranked and no more
            return tuple(map(ahead, now, then)) if len(now) == len(then) else ()

        return replace(
            self,
            cost=ahead(self.cost, before.cost),
            loss=ahead(self.loss, before.loss),
            rows=rows_ahead(self.rows, before.rows),
            loss_rows=rows_ahead(self.loss_rows, before.loss_rows),
        )

    @classmethod
    def of(cls, event: Evaluated, *, metric: ObjectiveMetric, losses_compare: bool = True) -> Self:
        """Return what an evaluation says: by ``metric`` where its rows are known, else by the validation loss.

        Args:
            losses_compare: Losses of all trials have one form and scale, so that the loss may settle near ties.
        """
        loss, loss_rows = event.validation_loss, event.row_values.get("loss", ())
        rows, value = event.row_values.get(metric.name, ()), metric.read(event)
        if metric.name == "loss" or not rows or value is None or not math.isfinite(value):
            return cls(trial_id=event.trial_id, cost=loss, loss=loss, rows=loss_rows)
        sign = metric.cost(1.0)
        return cls(
            trial_id=event.trial_id,
            cost=metric.cost(value),
            loss=loss if losses_compare else 0.0,
            rows=tuple(sign * row for row in rows),
            loss_rows=loss_rows if losses_compare else (),
        )


def chances(
    standings: Sequence[Standing], best: Standing, *, risk: float, tolerance: float = 0.0
) -> Mapping[int, float]:
    """Return by trial how likely it is, over draws of the rows, that it is better than ``best`` by the tolerance.

    Without rows, or with a ``risk`` of 1, ranks count alone: 0. With fewer than :data:`FEWEST_ROWS` rows nothing is
    known: 1. A metric that counts, such as an accuracy, tells few trials apart; where it does not, the loss may.

    Args:
        risk: The chance that will be tolerated; it sets how much small numbers of rows widen the interval.
        tolerance: A share of the best's value; with 0 it is the chance of being no worse.
    """
    others = [standing for standing in standings if standing is not best]
    found = _chances(others, best, risk=risk, tolerance=tolerance, rows_of=lambda standing: standing.rows)
    if best.loss_rows:
        by_loss = _chances(others, best, risk=risk, tolerance=tolerance, rows_of=lambda standing: standing.loss_rows)
        found = {trial_id: min(chance, by_loss[trial_id]) for trial_id, chance in found.items()}
    return {**found, best.trial_id: 1.0}


def numbers_of_chance(
    chance: float, *, risk: float, tolerance: float, num_rows: int, best_trial: int | None = None
) -> dict[str, float]:
    """Return what a decision records of a chance; nothing with a ``risk`` of 1, where only ranks counted.

    Runs that began before there was a risk recorded no such numbers, and a resume compares the records.
    """
    if risk >= 1:
        return {}
    best = {} if best_trial is None else {"best_trial": best_trial}
    return {**best, "chance": chance, "risk": risk, "tolerance": tolerance, "num_rows": num_rows}


def _chances(
    others: Sequence[Standing],
    best: Standing,
    *,
    risk: float,
    tolerance: float,
    rows_of: Callable[[Standing], tuple[float, ...]],
) -> dict[int, float]:
    num_rows = len(rows_of(best))
    known = [other for other in others if 0 < len(rows_of(other)) == num_rows]
    # a record of means alone can be ranked and no more
    found = dict.fromkeys((other.trial_id for other in others), 0.0)
    if risk >= 1 or not known:
        return found
    if num_rows < FEWEST_ROWS:
        return {**found, **dict.fromkeys((other.trial_id for other in known), 1.0)}
    # the settings of rules are read where numpy would be most of the time an answer takes: `cohort check --schema`
    from cohort.core.statistics.paired_resamples import not_worse

    # rows may have weights that are not known: a share of each row's own value is one of their mean
    margins = [tolerance * abs(row) for row in rows_of(best)]
    shifted = [[row + margin for row, margin in zip(rows_of(other), margins, strict=True)] for other in known]
    shares = not_worse(shifted, rows_of(best), risk=risk)
    return {**found, **dict(zip((other.trial_id for other in known), shares, strict=True))}
