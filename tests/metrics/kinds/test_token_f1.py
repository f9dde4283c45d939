"""F1 of shared words, as SQuAD's evaluation has it."""

from __future__ import annotations

import pytest

from cohort.metrics.kinds.token_f1 import METRIC, token_f1


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        # 2 shared of 3 and 2 words: 2 * (2/3) * 1 / (2/3 + 1)
        ("the big red fox", "Red fox.", 0.8),
        # a word counts as often as both texts have it
        ("yes yes yes", "yes yes", 0.8),
        ("a cat", "dogs", 0),
        ("", "dogs", 0),
        ("dogs", "", 0),
        ("", "", 1),
    ],
)
def test_token_f1(prediction: str, reference: str, expected: float) -> None:
    assert token_f1(prediction, reference) == pytest.approx(expected)


def test_a_row_may_be_partly_right() -> None:
    assert not METRIC.counts_hits
