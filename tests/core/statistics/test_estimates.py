"""Measured numbers as they are recorded and read."""

from __future__ import annotations

import math

import pytest

from cohort.core.statistics.estimates import Estimate, RowValues


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [(0.1, 0.3, True), (-0.3, -0.1, True), (-0.1, 0.1, False), (0.0, 0.2, False), (None, None, False)],
)
def test_a_difference_counts_where_its_interval_leaves_zero_out(
    low: float | None, high: float | None, *, excludes: bool
) -> None:
    assert Estimate(value=0.1, low=low, high=high, num_rows=8).excludes_zero == excludes


def test_long_rows_weigh_as_many_tokens_as_they_have() -> None:
    rows = RowValues(values=(2.0, 12.0), weights=(2, 6))
    assert rows.value == 14 / 8
    assert not rows.are_hits


def test_scores_weigh_the_same_and_without_rows_there_is_no_value() -> None:
    assert RowValues.of_scores((1.0, 0.5)).value == 0.75
    assert math.isnan(RowValues.of_scores(()).value)


@pytest.mark.parametrize(
    ("values", "weights", "hits"),
    [
        ((1.0, 0.0, 1.0), (1.0, 1.0, 1.0), True),
        ((1.0, 0.5), (1.0, 1.0), False),
        # a loss of exactly one nat a token is no hit
        ((1.0, 0.0), (2.0, 1.0), False),
        ((math.nan,), (1.0,), False),
    ],
)
def test_a_share_is_what_consists_of_hits_and_misses(
    values: tuple[float, ...], weights: tuple[float, ...], *, hits: bool
) -> None:
    assert RowValues(values=values, weights=weights).are_hits == hits
