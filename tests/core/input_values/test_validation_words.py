"""What a value may be, in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.core.input_values.validation_words import allowed_value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"type": "int_parsing"}, "a whole number"),
        ({"type": "int_from_float"}, "a whole number"),
        ({"type": "greater_than_equal", "ctx": {"ge": 1}}, "at least 1"),
        ({"type": "too_short", "ctx": {"min_length": 1}}, "at least one entry"),
        ({"type": "missing"}, "a value"),
        ({"type": "value_error", "msg": "Value error, 'x' is not one of 'a', 'b'."}, "'x' is not one of 'a', 'b'."),
    ],
)
def test_an_error_says_what_is_allowed(error: dict[str, Any], words: str) -> None:
    assert allowed_value(error) == words
