"""Errors carry every problem, and say all of them."""

from __future__ import annotations

import pytest

from cohort.core.errors import CohortError, InputError, Problem, StorageFullError


def problem(key: str) -> Problem:
    return Problem(where=key, found="0", allowed="1 or more", hint="Write 1.")


def test_an_input_error_says_every_problem() -> None:
    error = InputError([problem("a"), problem("b")])
    assert str(error).splitlines() == [f"{key}: found 0; allowed: 1 or more. Write 1." for key in "ab"]
    assert InputError(problem("a")).problems == (problem("a"),)


def test_a_problem_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        problem("a").found = "2"  # type: ignore[misc]


def test_a_full_disk_is_one_of_ours() -> None:
    assert issubclass(StorageFullError, CohortError)
