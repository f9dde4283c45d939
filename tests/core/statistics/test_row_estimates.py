"""Numbers and their intervals from what an adapter has on each row, alone and against another."""

from __future__ import annotations

import math

import pytest

from cohort.core.statistics.estimates import RowValues
from cohort.core.statistics.intervals import share_interval
from cohort.core.statistics.row_estimates import difference, estimate


def losses(*values: float, weight: float = 2.0) -> RowValues:
    return RowValues(values=values, weights=(weight,) * len(values))


def test_hits_have_wilsons_interval_and_losses_one_by_rows() -> None:
    hits = estimate(RowValues.of_scores((1.0, 0.0, 1.0, 1.0)))
    ends = share_interval(3, 4)
    assert (hits.value, hits.low, hits.high, hits.num_rows) == (0.75, ends.low, ends.high, 4)
    loss = estimate(losses(1.0, 2.0, 3.0, 6.0))
    assert (loss.value, loss.num_rows) == (1.5, 4)
    assert loss.low is not None
    assert loss.high is not None
    assert 0.5 <= loss.low < 1.5 < loss.high <= 3.0


def test_a_margin_of_zero_on_every_row_is_no_share() -> None:
    """The base model's rewards against itself: Wilson's interval would give the margin a width that no row has."""
    base, trial = (RowValues.of_scores(values, is_unbounded=True) for values in ((0.0,) * 8, (1.0,) * 8))
    assert not base.are_hits
    assert (estimate(base).low, estimate(base).high) == (0, 0)
    found = difference(trial, base)
    assert (found.value, found.low, found.high) == (1, 1, 1)


def test_one_row_and_a_number_that_is_not_finite_say_nothing_of_other_rows() -> None:
    for rows in (losses(1.0), losses(1.0, math.nan), losses(1.0, math.inf)):
        found = estimate(rows)
        assert (found.low, found.high, found.excludes_zero) == (None, None, False)


def test_a_small_gain_on_every_row_is_more_than_noise_although_the_rows_differ_much() -> None:
    hard, easy = [10.0 * n for n in range(20)], [10.0 * n + 1 + 0.1 * (n % 3) for n in range(20)]
    found = difference(losses(*hard), losses(*easy))
    assert found.value == pytest.approx(-sum(1 + 0.1 * (n % 3) for n in range(20)) / 40)
    assert found.excludes_zero
    ends = [estimate(losses(*values)) for values in (hard, easy)]
    assert (ends[0].high or 0) > (ends[1].low or 0), "apart, their intervals overlap"


def test_shares_that_agree_on_every_row_differ_by_nothing_and_not_for_certain() -> None:
    same = RowValues.of_scores((1.0, 0.0) * 5)
    found = difference(same, same)
    assert found.value == 0
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high


def test_other_rows_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 values and 1 others"):
        difference(losses(1.0, 2.0), losses(1.0))
