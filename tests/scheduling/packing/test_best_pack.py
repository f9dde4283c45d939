"""F(d, K) against every subset, under memory and time limits."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest

from cohort.scheduling.packing.best_pack import best_pack
from cohort.scheduling.packing.prices import rank_weights, uniform_prices
from cohort.scheduling.packing.records import ItemType, PackingProblem

from .packing_instances import problem, random_trials, trial


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


@pytest.mark.parametrize("seed", range(10))
def test_the_best_pack_is_the_best_of_all_subsets(seed: int) -> None:
    # room and limit bind in some of the draws, never in others
    given = problem(random_trials(seed, 9), room=(90_000, 300_000)[seed % 2], token_budget=(None, 500)[seed % 3 == 0])
    limit = (math.inf, 12.0)[seed % 4 == 3]
    available = Counter(ItemType.of(member) for member in given.trials)
    for weights in (rank_weights(given), uniform_prices(given)):
        for degree in (1, 2):
            found = best_pack(available, num_gpus=degree, problem=given, weights=weights, at_most_seconds=limit)
            best = best_ratio_of_all_subsets(given, weights, num_gpus=degree, limit=limit)
            if found is None:
                assert best == 0
                continue
            # the programs count in millionths
            assert found.ratio == pytest.approx(best, rel=1e-5)
            assert found.is_proven
            chosen = [
                member
                for type_, count in found.counts
                for member in [m for m in given.trials if ItemType.of(m) == type_][:count]
            ]
            assert given.fits(chosen, num_gpus=degree)
            assert found.seconds == pytest.approx(given.seconds(chosen, num_gpus=degree), rel=1e-12)
            assert found.seconds <= limit


def test_nothing_fits() -> None:
    given = problem([trial(0, r=64, batch_size=1)], room=200_000)
    available = {ItemType.of(given.trials[0]): 1}
    weights = rank_weights(given)
    assert best_pack(available, num_gpus=1, problem=given, weights=weights, at_most_seconds=0.1) is None
    assert best_pack({}, num_gpus=1, problem=given, weights=weights) is None
    tight = problem([trial(0, r=64, batch_size=1)], room=64_000)
    assert best_pack(available, num_gpus=1, problem=tight, weights=weights) is None
    assert best_pack(available, num_gpus=2, problem=tight, weights=weights) is not None, "state is sharded"
