"""Plans made of whole packs: every trial once, nothing covered twice, no longer packs than allowed."""

from __future__ import annotations

import math

import pytest

from cohort.scheduling.packing.cover import cover_jobs
from cohort.scheduling.packing.prices import PackPrices, fair_prices
from cohort.scheduling.packing.records import PackingProblem, PackPlan
from cohort.scheduling.packing.verify import check_pack_plan

from .packing_instances import problem, random_trials


def cover(
    given: PackingProblem, prices: PackPrices, *, at_most_seconds: float = math.inf, most_branches: int = 200
) -> PackPlan | None:
    jobs = cover_jobs(prices.packs, given, at_most_seconds=at_most_seconds, most_branches=most_branches)
    return None if jobs is None else PackPlan(jobs=jobs, num_gpus=given.num_gpus, policy="cover")


@pytest.mark.parametrize("seed", range(3))
def test_a_cover_is_a_plan_near_the_least_area(seed: int) -> None:
    given = problem(random_trials(seed, 20), num_gpus=(2, 4)[seed % 2], room=150_000, base=(0, 100_000)[seed // 2])
    prices = fair_prices(given)
    plan = cover(given, prices)
    assert plan is not None
    check_pack_plan(plan, given)
    area = sum(job.num_gpus * (job.end_seconds - job.start_seconds) for job in plan.jobs)
    assert area <= 1.2 * prices.total


def test_longer_packs_than_allowed_are_not_chosen() -> None:
    given = problem(random_trials(3, 16), num_gpus=2, room=300_000)
    prices = fair_prices(given)
    free = cover(given, prices)
    assert free is not None
    alone = max(given.seconds([trial], num_gpus=1) for trial in given.trials)
    bounded = cover(given, prices, at_most_seconds=1.01 * alone)
    assert bounded is not None
    check_pack_plan(bounded, given)
    assert max(job.end_seconds - job.start_seconds for job in bounded.jobs) <= 1.01 * alone
    assert cover(given, prices, at_most_seconds=1e-3) is None


def test_the_same_packs_make_the_same_cover() -> None:
    given = problem(random_trials(5, 12), num_gpus=4)
    prices = fair_prices(given)
    assert cover(given, prices) == cover(given, prices)
