"""Values, columns and constants of the trial table."""

from __future__ import annotations

import pytest

from cohort.cli.trial_table import constant_text, format_value, parameter_text, varied_names
from cohort.runs.records import JsonValue

ROWS: list[dict[str, JsonValue]] = [{"learning_rate": 2e-4, "r": 8}, {"learning_rate": 1e-3, "r": 8}]


@pytest.mark.parametrize(
    ("value", "text"), [(2e-5, "2e-05"), (0.25, "0.25"), (16, "16"), (True, "true"), (None, "-"), ("cosine", "cosine")]
)
def test_values_are_short(value: JsonValue, text: str) -> None:
    assert format_value(value) == text


def test_only_what_differs_gets_a_column_and_the_rest_is_told_once() -> None:
    assert varied_names(ROWS) == ["learning_rate"]
    assert constant_text(ROWS) == "in every trial r 8"
    assert constant_text([{"r": 8}, {"r": 16}]) is None
    assert (varied_names([]), constant_text([])) == ([], None)


def test_parameters_are_listed_by_name() -> None:
    assert parameter_text(ROWS[1], ["r", "learning_rate", "absent"]) == "r 8, learning_rate 0.001"
