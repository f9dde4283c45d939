"""Spaces written as plain values: multiples, ranges, words, and what is refused."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.tuning.parameters import Range
from cohort.tuning.space_syntax import parse_space


def problems_of(caught: pytest.ExceptionInfo[InputError]) -> list[tuple[str, str, str]]:
    return [(str(problem.where), problem.found, problem.hint) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("written", "expected"),
    [("2r", 32), ("2 * r", 32), ("r", 16), ("0.5r", 8), ("1.3r", 20.8), (" 2r ", 32)],
)
def test_multiples(written: str, expected: float) -> None:
    (configuration,) = parse_space({"r": 16, "lora_alpha": written}).configurations()
    assert configuration["lora_alpha"] == expected
    assert type(configuration["lora_alpha"]) is type(expected)


def test_a_multiple_of_a_value_outside_the_space() -> None:
    space = parse_space({"learning_rate": [1e-4], "lora_alpha": ["r", "2r"]}, base={"r": 16})
    assert list(space.configurations()) == [
        {"learning_rate": 1e-4, "lora_alpha": 16},
        {"learning_rate": 1e-4, "lora_alpha": 32},
    ]


def test_words_are_values() -> None:
    space = parse_space({"lr_scheduler_type": ["constant", "cosine"], "target_modules": "all-linear"})
    assert [c["lr_scheduler_type"] for c in space.configurations()] == ["constant", "cosine"]


def test_ranges_of_ranks_are_of_whole_numbers() -> None:
    space = parse_space({"r": {"min": 8, "max": 64}, "weight_decay": {"min": 0, "max": 1}})
    assert space.parameters["r"] == Range(min=8, max=64, integer=True)
    assert space.parameters["weight_decay"] == Range(min=0, max=1)


@pytest.mark.parametrize(
    ("written", "found", "hint"),
    [
        ("1e-5", "'1e-5'", "Write it without quotes."),
        (["1e-5", 1e-4], "'1e-5'", "Write it without quotes."),
        ("2rank", "'2rank'", "Set rank as well."),
        ("2rr", "'2rr'", "Did you mean 2r?"),
        ("2x", "'2x'", "Set x as well."),
        ([], "an empty list", "Write a value, or remove the key."),
        ([[1, 2]], "[1, 2]", "Write one value."),
        (None, "None", "Write one value."),
        ([float("inf")], "inf", "Remove it."),
        ({"min": 1}, "{'min': 1}", "Add max."),
        ({"min": 1, "max": 2, "lgo": True}, "'lgo'", "Did you mean log?"),
        ({"min": "1e-5", "max": 2}, "'1e-5'", "Write a number, without quotes."),
        ({"min": 2, "max": 1}, "min 2, max 1", "Exchange or correct them."),
        ({"min": 0, "max": 1, "log": True}, "min 0, max 1", "Raise min, or remove log."),
        ({"min": 1, "max": 2, "log": "yes"}, "'yes'", "Write true or false."),
        ({"min": 1, "max": 2, "num": 2.5}, "2.5", "Write how many values to take."),
        ({"min": 1, "max": 2, "num": 0}, "num 0", "Write how many values to take."),
        ({"min": 1, "max": 2, "step": 0.5, "num": 3}, "step 0.5", "Keep one of them."),
        ({"min": 1, "max": 2, "step": 0}, "step 0", "Write a positive step."),
        ({"min": 1.5, "max": 2, "integer": True}, "min 1.5, max 2", "Round min, max and step."),
    ],
)
def test_what_is_refused(written: object, found: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_space({"r": [8], "x": written})
    assert problems_of(caught) == [("search.space.x", found, hint)]


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_space({"learning_rate": "1e-5", "r": {"min": 1}, "batch_size": None})
    assert len(caught.value.problems) == 3
