"""Prices in GPU-seconds: no pack undercuts them."""

from __future__ import annotations

import math
from itertools import combinations

from cohort.scheduling.packing.prices import fair_prices, uniform_prices
from cohort.scheduling.packing.records import ItemType, PackingProblem

from .packing_instances import problem, random_trials


def best_ratio_of_all_subsets(
    given: PackingProblem, weights: dict[ItemType, float], *, num_gpus: int, limit: float
) -> float:
    best = 0.0
    for size in range(1, len(given.trials) + 1):
        for pack in combinations(given.trials, size):
            seconds = given.seconds(pack, num_gpus=num_gpus)
            if given.fits(pack, num_gpus=num_gpus) and seconds <= limit:
                best = max(best, sum(weights[ItemType.of(member)] for member in pack) / seconds)
    return best


def test_fair_prices_are_never_undercut_by_more_than_the_tolerance() -> None:
    given = problem(random_trials(3, 12), room=150_000)
    prices = fair_prices(given, tolerance=0.01)
    for degree in given.degrees:
        best = best_ratio_of_all_subsets(given, dict(prices.by_type), num_gpus=degree, limit=math.inf)
        assert best / degree <= 1.01 * (1 + 1e-5)
    assert prices.total <= sum(uniform_prices(given)[ItemType.of(member)] for member in given.trials) * (1 + 1e-9)
