"""The search space: grid order, duplicates, ranges, multiples, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.tuning.parameters import Choice, Constant, MultipleOf
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


def test_a_grid_of_an_undivided_range_says_what_to_do() -> None:
    space = parse_space({"learning_rate": {"min": 1e-5, "max": 5e-4, "log": True}, "r": {"min": 8, "max": 64}})
    with pytest.raises(InputError) as caught:
        list(space.configurations())
    assert [where for where, _, _ in problems_of(caught)] == ["search.space.learning_rate", "search.space.r"]
    assert "Add num: 5" in str(caught.value)


def test_multiples_of_what_has_no_numbers() -> None:
    for target in (MultipleOf(parameter="r"), Choice(values=("a",)), Constant(value=True)):
        with pytest.raises(InputError, match="a multiple of a parameter with numbers of its own: r"):
            SearchSpace(parameters={"r": Choice(values=(8,)), "y": target, "x": MultipleOf(parameter="y", factor=2)})
    with pytest.raises(InputError, match="a multiple of a parameter"):
        SearchSpace(parameters={"x": MultipleOf(parameter="x")})
    with pytest.raises(InputError, match="a number; name is 'cosine'"):
        parse_space({"x": "2name"}, base={"name": "cosine"})


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_grid_holds_each_distinct_configuration_once(columns: list[list[int]]) -> None:
    space = SearchSpace(parameters={f"p{i}": Choice(values=tuple(column)) for i, column in enumerate(columns)})
    grid = [tuple(c.values()) for c in space.configurations()]
    assert len(grid) == len(set(grid)) == math.prod(len(set(column)) for column in columns)
    assert grid == [tuple(c.values()) for c in space.configurations()]
