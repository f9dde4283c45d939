"""What both databases can hold."""

from __future__ import annotations

import math

import pytest

from cohort.core.errors import InputError
from cohort.store.storable import check_storable, finite, is_storable_text


@pytest.mark.parametrize(("text", "can_be"), [("", True), ("ä\U0001f600\n", True), ("a\0", False), ("\ud800", False)])
def test_text_has_no_nul_and_no_half_characters(text: str, can_be: bool) -> None:
    assert is_storable_text(text) is can_be


def test_every_part_that_cannot_be_held_is_named() -> None:
    with pytest.raises(InputError) as raised:
        check_storable({"a": {"b": ["ok", "\0"]}, "c": 2**64, "d": math.inf, "e": True, "f": None, "g": -(2**63) + 1})
    assert [str(problem.where) for problem in raised.value.problems] == ["a.b[1]", "c", "d"]


def test_numbers_that_are_none_become_none() -> None:
    assert finite({"loss": math.nan, "steps": [1, math.inf, 2.5], "name": "x"}) == {
        "loss": None,
        "steps": [1, None, 2.5],
        "name": "x",
    }
