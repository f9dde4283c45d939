"""Ranges that are divided into values."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.tuning.parameters import Range
from cohort.tuning.space import SearchSpace
from cohort.tuning.space_syntax import parse_space


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"min": 0.1, "max": 0.5, "step": 0.1}, (0.1, 0.2, 0.3, 0.4, 0.5)),
        ({"min": 0, "max": 1, "num": 5}, (0.0, 0.25, 0.5, 0.75, 1.0)),
        ({"min": 1, "max": 100, "log": True, "num": 3}, (1.0, 10.0, 100.0)),
        ({"min": 8, "max": 64, "step": 16, "integer": True}, (8, 24, 40, 56)),
        ({"min": 8, "max": 64, "log": True, "num": 4, "integer": True}, (8, 16, 32, 64)),
        ({"min": 1, "max": 3, "num": 9, "integer": True}, (1, 2, 3)),
        ({"min": 2, "max": 2, "num": 3}, (2.0,)),
    ],
)
def test_divided_ranges(written: dict[str, object], expected: tuple[float, ...]) -> None:
    values = [c["x"] for c in parse_space({"x": written}).configurations()]
    assert values == pytest.approx(expected, rel=1e-12)
    assert (values[0], values[-1]) == (expected[0], expected[-1]), "bounds are exact"
    assert [type(value) for value in values] == [type(value) for value in expected]


@pytest.mark.parametrize(
    "parameter",
    [
        Range(min=1e-5, max=1e-3, num=1_000_000_000),
        Range(min=1e-5, max=1e-3, num=10_001, log=True),
        Range(min=0.0, max=1.0, step=1e-9),
        Range(min=1, max=10**12, step=1, integer=True),
    ],
)
def test_a_range_of_too_many_values_is_refused_before_they_are_listed(parameter: Range) -> None:
    with pytest.raises(InputError, match="at most 10000"):
        SearchSpace(parameters={"x": parameter})
    SearchSpace(parameters={"x": Range(min=0.0, max=1.0, num=10_000), "y": Range(min=0, max=10_000, step=1)})
