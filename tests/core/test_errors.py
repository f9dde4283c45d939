"""Errors carry every problem, and say all of them."""

from __future__ import annotations

import pytest

from cohort.core.errors import (
    CohortError,
    InputError,
    Problem,
    SampleTooLargeError,
    StorageFullError,
    UnsupportedModelError,
    in_file_order,
)
from cohort.core.source_location import Place


def problem(key: str) -> Problem:
    return Problem(where=key, found="0", allowed="1 or more", hint="Write 1.")


def test_an_input_error_says_every_problem() -> None:
    error = InputError([problem("a"), problem("b")])
    assert str(error).splitlines() == [f"{key}: found 0; allowed: 1 or more. Write 1." for key in "ab"]
    assert InputError(problem("a")).problems == (problem("a"),)


def test_problems_are_listed_in_the_order_of_their_file() -> None:
    places = [("task", 9), ("rows", 7), ("task", 2), ("rows", 3), ("task", None), ("task", 2), ("", None)]
    given = [
        Problem(where=Place(file=file, line=line), found=str(number), allowed="", hint="")
        for number, (file, line) in enumerate(places)
    ]
    # a key that is missing has no line; of those in one line the first stays the first
    assert [int(found.found) for found in in_file_order(given)] == [4, 2, 5, 0, 3, 1, 6]
    assert in_file_order([]) == ()


def test_a_problem_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        problem("a").found = "2"  # type: ignore[misc]


def test_a_full_disk_is_one_of_ours() -> None:
    assert issubclass(StorageFullError, CohortError)


def test_an_error_keeps_its_class_with_other_words() -> None:
    found = SampleTooLargeError(problem("a"), 7).about([problem("b")])
    assert (type(found), found.problems, found.num_tokens) == (SampleTooLargeError, (problem("b"),), 7)
    assert type(UnsupportedModelError(problem("a")).about([])) is UnsupportedModelError
