"""The expected answer may stand anywhere in the text."""

from __future__ import annotations

import pytest

from cohort.metrics.kinds.contains import contains


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("It is Paris, of course", " Paris\n", 1),
        ("it is paris", "Paris", 0),
        # parts of words count, too
        ("10", "1", 1),
        ("", "Paris", 0),
    ],
)
def test_contains(prediction: str, reference: str, expected: float) -> None:
    assert contains(prediction, reference) == expected
