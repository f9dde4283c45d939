"""Constraints and conditions in a search space, for grid, random and TPE alike."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.tuning.constraints import parse_constraint
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range
from cohort.tuning.samplers import build_sampler, count_configurations
from cohort.tuning.space import SearchSpace

NAMES = ("r", "lora_alpha", "schedule", "warmup")


def space(*constraints: str, **parameters: Parameter) -> SearchSpace:
    parsed = tuple(parse_constraint(text, names=NAMES) for text in constraints)
    return SearchSpace(parameters=parameters, constraints=parsed)


LISTS: dict[str, Parameter] = {"r": Choice(values=(4, 8, 16)), "lora_alpha": Choice(values=(8, 16, 32))}
SCHEDULES: dict[str, Parameter] = {
    "schedule": Choice(values=("constant", "cosine")),
    "warmup": Conditional(parameter=Choice(values=(0.1, 0.2)), when={"schedule": ("cosine",)}, otherwise=0.0),
}
SAMPLERS = ["grid", "random", "tpe"]


def proposed(name: str, where: SearchSpace, *, trials: int = 50) -> list[tuple[object, ...]]:
    proposals = build_sampler(name, where, trials=trials, seed=1).propose(trials)
    return [tuple(proposal.values()) for proposal in proposals]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_configuration_that_meets_the_constraints_is_proposed_once(name: str) -> None:
    where = space("lora_alpha >= r", "r * lora_alpha <= 256", **LISTS)
    found = proposed(name, where)
    assert sorted(found) == [(4, 8), (4, 16), (4, 32), (8, 8), (8, 16), (8, 32), (16, 16)]
    assert count_configurations(where, sampler=name, trials=50) == 7
    assert count_configurations(where, sampler=name, trials=3) == (7 if name == "grid" else 3)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_parameter_is_searched_only_where_it_is_active(name: str) -> None:
    found = proposed(name, space(**SCHEDULES))
    assert sorted(found) == [("constant", 0.0), ("cosine", 0.1), ("cosine", 0.2)]
    # a check of the task names the trials that are tried, not the product of the lists
    assert count_configurations(space(**SCHEDULES), sampler=name, trials=50) == 3


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_ranges_are_drawn_within_constraints_and_conditions(name: str) -> None:
    where = space(
        "r <= 24 or schedule == 'cosine'",
        r=Range(min=8, max=64, integer=True),
        schedule=Choice(values=("constant", "cosine")),
        warmup=Conditional(parameter=Range(min=0.1, max=0.5), when={"schedule": ("cosine",)}, otherwise=0.0),
    )
    sampler = build_sampler(name, where, trials=12, seed=2)
    for trial_id in range(12):
        (c,) = sampler.propose(1)
        sampler.tell(trial_id, float(c["warmup"]))
        assert int(c["r"]) <= 24 or c["schedule"] == "cosine"
        assert (c["warmup"] == 0.0) == (c["schedule"] == "constant")


@pytest.mark.parametrize("name", SAMPLERS)
def test_constraints_that_nothing_meets(name: str) -> None:
    where = space("lora_alpha > 100", **LISTS)
    assert proposed(name, where) == []
    assert count_configurations(where, sampler=name, trials=5) == 0


def test_conditions_may_follow_each_other_and_multiples() -> None:
    where = space(
        lora_alpha=Conditional(parameter=MultipleOf(parameter="r", factor=2), when={"warmup": (0.1,)}, otherwise=5),
        warmup=SCHEDULES["warmup"],
        schedule=SCHEDULES["schedule"],
        r=Choice(values=(4, 8)),
    )
    found = proposed("tpe", where)
    assert sorted(found) == sorted(proposed("grid", where))
    assert {row for row in found if row[1] == 0.1} == {(8, 0.1, "cosine", 4), (16, 0.1, "cosine", 8)}
    assert {row[0] for row in found if row[1] != 0.1} == {5}


def when(other: str, *values: object, parameter: Parameter | None = None) -> Conditional:
    inner = parameter or Constant(value=1)
    assert not isinstance(inner, Conditional)
    return Conditional(parameter=inner, when={other: values}, otherwise=0)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"r": when("rank", 4)}, "found when rank; allowed: another parameter"),
        (
            {"r": when("warmup", 7), "warmup": Choice(values=(1, 2))},
            "is 7; allowed: values that warmup can have",
        ),
        ({"r": when("warmup", 0), "warmup": when("r", 0)}, "a condition on itself"),
        (
            {"r": Conditional(parameter=Constant(value=1), when={"warmup": (1,)}), "warmup": Constant(value=1)},
            "for the rest",
        ),
    ],
)
def test_conditions_that_cannot_be(parameters: dict[str, Parameter], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchSpace(parameters=parameters)


def test_a_constraint_that_makes_no_sense_is_told() -> None:
    with pytest.raises(InputError, match=r"search\.constraints: found .*makes no sense for"):
        list(space("schedule > r", r=Choice(values=(1, 2)), **SCHEDULES).configurations())
