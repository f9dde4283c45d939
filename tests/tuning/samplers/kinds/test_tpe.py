"""TPE learns from the results it gets; random draws do not."""

from __future__ import annotations

import math

import pytest

from cohort.tuning.samplers import SAMPLERS, build_sampler
from cohort.tuning.space import SearchSpace
from cohort.tuning.space_syntax import parse_space


def mean_distance(space: SearchSpace, name: str, *, maximize: bool = False) -> float:
    """Mean distance of the last 20 of 60 proposals from the optimum, freed slots refilled one by one."""
    sampler = build_sampler(name, space, trials=60, seed=0, maximize=maximize)
    distances = []
    for trial_id in range(60):
        (configuration,) = sampler.propose(1)
        distance = abs(math.log10(float(configuration["learning_rate"]) / 3e-5))
        distances.append(distance)
        sampler.tell(trial_id, -distance if maximize else distance)
    return sum(distances[-20:]) / 20


@pytest.mark.parametrize("maximize", [False, True])
def test_tpe_learns_from_what_it_is_told(maximize: bool) -> None:
    space = parse_space({"learning_rate": {"min": 1e-5, "max": 1e-1, "log": True}})
    # uniform draws over 4 decades have a mean distance of about 1.6
    assert mean_distance(space, "random", maximize=maximize) > 1.0
    assert mean_distance(space, "tpe", maximize=maximize) < 0.5


def test_it_is_told_results_and_the_samplers_that_do_not_learn_are_not() -> None:
    assert {sampler.name: sampler.learns for sampler in SAMPLERS.built_in()} == {
        "grid": False, "random": False, "tpe": True,
    }  # fmt: skip
