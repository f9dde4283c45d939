"""Only white space at the ends may differ."""

from __future__ import annotations

import pytest

from cohort.metrics.kinds.exact_match import METRIC, exact_match


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [(" Paris\n", "Paris", 1), ("paris", "Paris", 0), ("Paris.", "Paris", 0), ("a  b", "a b", 0), ("", " ", 1)],
)
def test_exact_match(prediction: str, reference: str, expected: float) -> None:
    assert exact_match(prediction, reference) == expected


def test_a_row_is_right_or_wrong_and_normalize_counts() -> None:
    assert METRIC.counts_hits
    assert METRIC.reads_normalize
