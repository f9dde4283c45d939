"""The search space: grid order, duplicates, ranges, multiples, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.tuning.parameters import Choice, Constant, MultipleOf, Range
from cohort.tuning.space import SearchSpace
from cohort.tuning.space_syntax import parse_space


def problems_of(caught: pytest.ExceptionInfo[InputError]) -> list[tuple[str, str, str]]:
    return [(str(problem.where), problem.found, problem.hint) for problem in caught.value.problems]


def test_the_documented_space() -> None:
    space = parse_space(
        {
            "learning_rate": [1e-5, 5e-5, 2e-4, 3e-4, 5e-4],
            "r": [16, 32, 64],
            "lora_alpha": "2r",
            "batch_size": [1, 2, 4, 8],
        }
    )
    grid = list(space.configurations())
    assert len(grid) == 60
    assert grid[0] == {"learning_rate": 1e-5, "r": 16, "lora_alpha": 32, "batch_size": 1}
    assert grid[1] == {"learning_rate": 1e-5, "r": 16, "lora_alpha": 32, "batch_size": 2}
    assert grid[-1] == {"learning_rate": 5e-4, "r": 64, "lora_alpha": 128, "batch_size": 8}
    assert list(grid[0]) == ["learning_rate", "r", "lora_alpha", "batch_size"]
    assert all(type(c["lora_alpha"]) is int and type(c["learning_rate"]) is float for c in grid)


def test_duplicates_are_removed_at_their_first_place() -> None:
    space = parse_space({"r": [8, 16, 8, 16.0], "lora_alpha": [16, "r", "2r"]})
    assert [tuple(c.values()) for c in space.configurations()] == [(8, 16), (8, 8), (16, 16), (16, 32)]


def test_true_is_not_one() -> None:
    space = parse_space({"use_rslora": [True, 1]})
    assert [c["use_rslora"] for c in space.configurations()] == [True, 1]


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


def test_ranges_of_ranks_are_of_whole_numbers() -> None:
    space = parse_space({"r": {"min": 8, "max": 64}, "weight_decay": {"min": 0, "max": 1}})
    assert space.parameters["r"] == Range(min=8, max=64, integer=True)
    assert space.parameters["weight_decay"] == Range(min=0, max=1)


def test_a_grid_of_an_undivided_range_says_what_to_do() -> None:
    space = parse_space({"learning_rate": {"min": 1e-5, "max": 5e-4, "log": True}, "r": {"min": 8, "max": 64}})
    with pytest.raises(InputError) as caught:
        list(space.configurations())
    assert [where for where, _, _ in problems_of(caught)] == ["search.space.learning_rate", "search.space.r"]
    assert "Add num: 5" in str(caught.value)


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


def test_multiples_of_what_has_no_numbers() -> None:
    for target in (MultipleOf(parameter="r"), Choice(values=("a",)), Constant(value=True)):
        with pytest.raises(InputError, match="a multiple of a parameter with numbers of its own: r"):
            SearchSpace(parameters={"r": Choice(values=(8,)), "y": target, "x": MultipleOf(parameter="y", factor=2)})
    with pytest.raises(InputError, match="a multiple of a parameter"):
        SearchSpace(parameters={"x": MultipleOf(parameter="x")})
    with pytest.raises(InputError, match="a number; name is 'cosine'"):
        parse_space({"x": "2name"}, base={"name": "cosine"})


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_space({"learning_rate": "1e-5", "r": {"min": 1}, "batch_size": None})
    assert len(caught.value.problems) == 3


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_grid_holds_each_distinct_configuration_once(columns: list[list[int]]) -> None:
    space = SearchSpace(parameters={f"p{i}": Choice(values=tuple(column)) for i, column in enumerate(columns)})
    grid = [tuple(c.values()) for c in space.configurations()]
    assert len(grid) == len(set(grid)) == math.prod(len(set(column)) for column in columns)
    assert grid == [tuple(c.values()) for c in space.configurations()]
