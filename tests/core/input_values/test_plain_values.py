"""Values of other libraries become plain ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cohort.core.errors import InputError
from cohort.core.input_values.plain_values import plain_value


def test_numbers_lists_and_paths_become_plain() -> None:
    given = {
        "a": np.int64(3),
        "b": [np.float32(0.5), (np.bool_(True),)],
        "c": np.array([1e-4]),
        "d": range(2),
        "e": Path("x"),
    }
    plain = plain_value(given)
    assert plain == {"a": 3, "b": [0.5, [True]], "c": [1e-4], "d": [0, 1], "e": "x"}
    assert [type(plain["a"]), type(plain["b"][0]), type(plain["b"][1][0])] == [int, float, bool]


def test_anything_else_stays() -> None:
    thing = object()
    assert plain_value(thing) is thing


def test_what_contains_itself_is_an_input_error() -> None:
    inner: list[object] = []
    inner.append({"again": inner})
    with pytest.raises(InputError, match="contains itself"):
        plain_value(inner)
