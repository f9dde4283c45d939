"""What of a text counts: its answer, its last number, its words."""

from __future__ import annotations

import pytest

from cohort.metrics.normalization import find_answer, last_number, normalized, words


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 30 = 42.", "42"),
        ("#### 1,234.50", "1234.5"),
        ("it costs $-3", "-3"),
        ("-$3", "-3"),
        ("\u22127 degrees", "-7"),
        ("from 3-4", "4"),
        ("gives 1e3", "1000"),
        (".5", "0.5"),
        ("1,2,3", "3"),
        ("2 eggs", "2"),
        ("1 234", "234"),
        ("v2x", "2"),
        ("1e999", "1e999"),
        ("none", None),
    ],
)
def test_the_last_number(text: str, number: str | None) -> None:
    found = last_number(text)
    assert (found is None) == (number is None)
    assert found is None or found == type(found)(str(number))


def test_the_answer_is_the_last_match_and_its_first_group() -> None:
    assert find_answer("A: 1\nA: 2 ", r"A: (\d)") == "2"
    assert find_answer("x=1 y=2", r"x=(\d)|y=(\d)") == "2"
    assert find_answer("so 17", r"\d+") == "17"
    assert find_answer("so", r"\d+") is None


def test_without_a_pattern_the_whole_text_is_the_answer() -> None:
    assert find_answer(" two\nlines ", None) == "two\nlines"
    # a match of nothing is an answer, and not none
    assert find_answer("so", r"x*") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" The  Cat's ", "cats"),
        # an answer that consists of an article or a mark alone stays what it is
        ("A", "a"),
        ("?", "?"),
        ("\uff30aris", "paris"),
        ("\u00abStra\u00dfe\u00bb", "strasse"),
        ("theatre another", "theatre another"),
        ("", ""),
    ],
)
def test_normalized(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_words_of_every_alphabet() -> None:
    assert words("The cat_sat, 12 times!") == ["the", "cat", "sat", "12", "times"]
    assert words("Кошка спит") == [
        "кошка",
        "спит",
    ]
    assert words("...") == []
