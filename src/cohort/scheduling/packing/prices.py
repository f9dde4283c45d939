"""Weights of trials that the packing planner maximises per second: PLoRA's, and prices in GPU-seconds.

With PLoRA's weight, rank times tokens, the planner takes large ranks first whatever they cost, and is left with small
ones that fill GPUs badly. Prices are fair: no pack is much cheaper than its members' prices together, so that taking
the best pack never spoils the rest. They are the dual values of the linear program that covers all trials by packs at
least GPU-seconds, found column by column with F(d, K) as the pricing step (Gilmore and Gomory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from cohort.scheduling.packing.best_pack import PackLimits, best_pack
from cohort.scheduling.packing.records import ItemType, PackingProblem

__all__ = ["PackPrices", "PricedPack", "fair_prices", "rank_weights", "uniform_prices"]

# a degree whose best pack is this much dearer than the prices is seldom looked at again
DEAR = 0.9


@dataclass(frozen=True, kw_only=True)
class PricedPack:
    """A pack that was looked at: members by type, GPUs and seconds."""

    counts: tuple[tuple[ItemType, int], ...]
    num_gpus: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PackPrices:
    """Prices by type, their total over all trials, the packs that prove them, and the integer programs they took."""

    by_type: Mapping[ItemType, float]
    total: float
    packs: tuple[PricedPack, ...]
    num_solves: int
    num_unproven: int


def rank_weights(problem: PackingProblem) -> dict[ItemType, float]:
    """Return PLoRA's weights: rank times tokens to train."""
    return {type_: type_.work.weight for type_ in problem.by_type}


def uniform_prices(problem: PackingProblem) -> dict[ItemType, float]:
    """Return the least GPU-seconds a trial of each type costs in a pack of its own type, over degrees and sizes."""
    least: dict[ItemType, float] = {}
    for pack in _uniform_packs(problem):
        ((type_, count),) = pack.counts
        least[type_] = min(least.get(type_, math.inf), pack.num_gpus * pack.seconds / count)
    return least


def _uniform_packs(problem: PackingProblem) -> list[PricedPack]:
    found = []
    for type_, trials in problem.by_type.items():
        for degree in problem.degrees:
            for count in range(1, len(trials) + 1):
                pack = trials[:count]
                if not problem.fits(pack, num_gpus=degree):
                    break
                seconds = problem.seconds(pack, num_gpus=degree)
                found.append(PricedPack(counts=((type_, count),), num_gpus=degree, seconds=seconds))
    return found


def fair_prices(
    problem: PackingProblem, *, limits: PackLimits | None = None, tolerance: float = 0.01, most_rounds: int = 40
) -> PackPrices:
    """Return prices that no pack undercuts by more than ``tolerance``, or the last ones after ``most_rounds``."""
    counts = {type_: len(trials) for type_, trials in problem.by_type.items()}
    place = {type_: index for index, type_ in enumerate(counts)}
    packs = _uniform_packs(problem)
    prices = uniform_prices(problem)
    floor = dict(prices)
    solves = unproven = 0
    looked_at = set(problem.degrees)
    for _ in range(most_rounds):
        highest = 0.0
        for degree in sorted(looked_at):
            pack = best_pack(counts, num_gpus=degree, problem=problem, weights=prices, limits=limits)
            if pack is None:
                continue
            solves, unproven = solves + pack.num_solves, unproven + (not pack.is_proven)
            highest = max(highest, pack.ratio / degree)
            # Such a degree's packs are dear at any prices near these; each look costs several integer programs.
            if pack.ratio / degree < DEAR:
                looked_at.discard(degree)
            packs.append(PricedPack(counts=pack.counts, num_gpus=degree, seconds=pack.seconds))
        # No pack is worth more than its GPU-seconds by more than the tolerance: the prices are fair.
        if highest <= 1 + tolerance:
            break
        duals = _duals(packs, place, demand=list(counts.values()))
        # a price of nothing would leave its trials for last
        prices = {type_: max(duals[index], 1e-3 * floor[type_]) for type_, index in place.items()}
    total = sum(prices[type_] * count for type_, count in counts.items())
    return PackPrices(by_type=prices, total=total, packs=tuple(packs), num_solves=solves, num_unproven=unproven)


def _duals(packs: Sequence[PricedPack], place: Mapping[ItemType, int], *, demand: Sequence[int]) -> list[float]:
    """Return what one more trial of each type would cost in GPU-seconds, by the linear program over ``packs``."""
    members = np.zeros((len(place), len(packs)))
    for column, pack in enumerate(packs):
        for type_, count in pack.counts:
            members[place[type_], column] = count
    # Cost of a pack is the GPU time it holds; the duals are then prices of trials in GPU-seconds.
    costs = [pack.num_gpus * pack.seconds for pack in packs]
    master = linprog(costs, A_ub=-members, b_ub=-np.array(demand, dtype=float), method="highs")
    return [-float(dual) for dual in master.ineqlin.marginals]
