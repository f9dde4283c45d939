"""A setting's bounds and words are written once, in its field; the dataclass checks itself by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.setting_fields import (
    Refusal,
    check_settings,
    checked,
    choice,
    flag,
    number,
    setting_fields,
    share,
    whole,
)
from cohort.core.source_location import Place


def _even(value: Any) -> Iterator[Refusal]:
    for index, entry in enumerate(value):
        if entry % 2:
            yield Refusal(found=str(entry), allowed="even numbers", hint="Double it.", at=(index,))


@dataclass(frozen=True, kw_only=True)
class Settings:
    part: float = share(0.5, "a part")
    rate: float = number(0.1, "a rate", minimum=None)
    gap: float = number(0, "a gap")
    count: int = whole(2, "a count", minimum=2)
    most: int | None = whole(None, "a limit", null="for all")
    switch: bool = flag(True, "a switch")
    word: str = choice("auto", "a word", options=("auto", "never"))
    evens: tuple[int, ...] = checked((), "evens", kind=tuple[int, ...], allowed="even numbers", check=_even)

    def __post_init__(self) -> None:
        check_settings(self, where=Place(key=("section",)))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("part", 0, "a share above 0, at most 1"),
        ("part", 1.1, "a share above 0, at most 1"),
        ("rate", 0, "a number above 0, at most 1,000,000,000"),
        ("rate", 1e30, "a number above 0, at most 1,000,000,000"),
        ("rate", 10**400, "a number above 0, at most 1,000,000,000"),
        ("count", 2**63, "a whole number of at least 2, at most 1,000,000,000"),
        ("gap", -1, "a number of at least 0, at most 1,000,000,000"),
        ("gap", float("nan"), "a number of at least 0, at most 1,000,000,000"),
        ("gap", "1", "a number of at least 0, at most 1,000,000,000"),
        ("count", 1, "a whole number of at least 2, at most 1,000,000,000"),
        ("count", 2.0, "a whole number of at least 2, at most 1,000,000,000"),
        ("count", True, "a whole number of at least 2, at most 1,000,000,000"),
        ("count", None, "a whole number of at least 2, at most 1,000,000,000"),
        ("most", 0, "a whole number of at least 1, at most 1,000,000,000, or null for all"),
        ("switch", 1, "true | false"),
        ("switch", None, "true | false"),
        ("word", "nevr", "auto | never"),
    ],
)
def test_a_value_outside_its_bounds_is_refused(key: str, value: object, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(Settings(), **{key: value})  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.where == Place(key=("section", key))
    assert (problem.found, problem.allowed) == (repr(value), allowed)
    assert problem.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [("part", 1), ("rate", 1e-9), ("gap", 0), ("count", 2), ("most", None), ("most", 1), ("switch", False)],
)
def test_a_value_on_its_bound_is_accepted(key: str, value: object) -> None:
    assert getattr(replace(Settings(), **{key: value}), key) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "hint"),
    [({"count": 1}, "Write for example 2, the default."), ({"most": 0}, "Leave it out.")],
)
def test_the_hint_is_the_default_or_to_leave_the_key_out(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert [problem.hint for problem in caught.value.problems] == [hint]


def test_all_problems_come_at_once_with_the_place_inside_a_value() -> None:
    with pytest.raises(InputError) as caught:
        Settings(count=0, word="nevr", evens=(2, 3, 5))
    assert [str(problem.where) for problem in caught.value.problems] == [
        "section.count",
        "section.word",
        "section.evens[1]",
        "section.evens[2]",
    ]
    assert caught.value.problems[1].hint == "Did you mean never?"


def test_the_fields_say_what_a_section_needs() -> None:
    fields = setting_fields(Settings)
    assert list(fields) == ["part", "rate", "gap", "count", "most", "switch", "word", "evens"]
    assert (fields["part"].bounds, fields["count"].description) == ({"gt": 0, "le": 1}, "a count")
