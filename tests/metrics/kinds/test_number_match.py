"""The last numbers of both texts are compared as values."""

from __future__ import annotations

import pytest

from cohort.metrics.kinds.number_match import METRIC, number_match


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("so 3.0", "#### 3", 1),
        ("$3.00", "3", 1),
        ("1,234", "1234.0", 1),
        ("so 3 or 4", "#### 3", 0),
        ("-3", "3", 0),
        # 0.1 + 0.2 is no matter of binary fractions here
        ("0.30", "0.3", 1),
        ("none", "3", 0),
        # a reference without a number is met by nothing, least of all by a text without one
        ("none", "none", 0),
    ],
)
def test_number_match(prediction: str, reference: str, expected: float) -> None:
    assert number_match(prediction, reference) == expected


def test_normalize_does_not_change_numbers() -> None:
    assert METRIC.counts_hits
    assert not METRIC.reads_normalize
