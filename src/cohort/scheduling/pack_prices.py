"""Weights of trials that the packing planner maximises per second: PLoRA's, and prices in GPU-seconds.

With PLoRA's weight, rank times tokens, the planner takes large ranks first whatever they cost, and is left with small
ones that fill GPUs badly. Prices are fair: no pack is much cheaper than its members' prices together, so that taking
the best pack never spoils the rest. They are the dual values of the linear program that covers all trials by packs at
least GPU-seconds, found column by column with F(d, K) as the pricing step (Gilmore and Gomory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from cohort.scheduling.best_pack import PackLimits, best_pack
from cohort.scheduling.pack_records import PackingProblem, TrialType

__all__ = ["PackPrices", "fair_prices", "rank_weights", "uniform_prices"]

# a degree whose best pack is this much dearer than the prices is seldom looked at again
DEAR = 0.9


@dataclass(frozen=True, kw_only=True)
class PackPrices:
    """Prices by type, their total over all trials, and the integer programs that they took."""

    by_type: Mapping[TrialType, float]
    total: float
    num_solves: int
    num_unproven: int


def rank_weights(problem: PackingProblem) -> dict[TrialType, float]:
    """Return PLoRA's weights: rank times tokens to train."""
    return {TrialType.of(trial): trial.work.weight for trial in problem.trials}


def uniform_prices(problem: PackingProblem) -> dict[TrialType, float]:
    """Return the least GPU-seconds a trial of each type costs in a pack of its own type, over degrees and sizes."""
    return {type_: min(seconds / count for count, seconds in packs) for type_, packs in _uniform_packs(problem).items()}


def _uniform_packs(problem: PackingProblem) -> dict[TrialType, list[tuple[int, float]]]:
    """Return (size, GPU-seconds) of every pack of one type that fits."""
    examples = {TrialType.of(trial): trial for trial in problem.trials}
    counts = Counter(TrialType.of(trial) for trial in problem.trials)
    found: dict[TrialType, list[tuple[int, float]]] = {}
    for type_, trial in examples.items():
        packs = found.setdefault(type_, [])
        for degree in problem.degrees:
            for count in range(1, counts[type_] + 1):
                pack = [trial] * count
                if not problem.fits(pack, num_gpus=degree):
                    break
                packs.append((count, degree * problem.seconds(pack, num_gpus=degree)))
    return found


def fair_prices(
    problem: PackingProblem, *, limits: PackLimits | None = None, tolerance: float = 0.01, most_rounds: int = 40
) -> PackPrices:
    """Return prices that no pack undercuts by more than ``tolerance``, or the last ones after ``most_rounds``."""
    counts = Counter(TrialType.of(trial) for trial in problem.trials)
    types = list(counts)
    demand = np.array([counts[type_] for type_ in types], dtype=float)
    uniform = _uniform_packs(problem)
    columns: list[list[int]] = []
    costs: list[float] = []
    for place, type_ in enumerate(types):
        for count, seconds in uniform[type_]:
            columns.append([count if index == place else 0 for index in range(len(types))])
            costs.append(seconds)
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
            if pack.ratio / degree < DEAR:
                looked_at.discard(degree)
            taken = dict(pack.counts)
            columns.append([taken.get(type_, 0) for type_ in types])
            costs.append(degree * pack.seconds)
        if highest <= 1 + tolerance:
            break
        master = linprog(costs, A_ub=-np.array(columns, dtype=float).T, b_ub=-demand, method="highs")
        duals = -np.asarray(master.ineqlin.marginals)
        # a price of nothing would leave its trials for last
        prices = {type_: max(float(dual), 1e-3 * floor[type_]) for type_, dual in zip(types, duals, strict=True)}
    total = sum(prices[type_] * count for type_, count in counts.items())
    return PackPrices(by_type=prices, total=total, num_solves=solves, num_unproven=unproven)
