"""What is no whole number of ours is None, and never an error."""

from __future__ import annotations

import pytest

from cohort.core.input_values.whole_numbers import read_whole


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("017", 17), ("9" * 18, 10**18 - 1)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert read_whole(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "²", "٣", "1_000", "9" * 19, "9" * 5000])
def test_everything_else_is_none(text: str) -> None:
    assert read_whole(text) is None
