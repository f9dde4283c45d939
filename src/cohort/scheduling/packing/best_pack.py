"""F(d, K): the pack with the most weight per second on d GPUs, by Dinkelbach's method over integer programs.

A ratio w / T is maximised by asking, for a guess lambda = p / q, for the pack with the largest q w - p T, and taking
that pack's own ratio as the next guess; it ends when the largest is 0. All numbers are integers, so that it does end.

T is the pack's seconds summed over phases between its members' completions. Trials of equal type are counted, not
told apart. Steps of the members split time into phases; a phase costs the fixed part if any member still trains, each
active member's own part, and what its tokens cost beyond each knee. All of it is convex, so T needs only lower bounds.

Source: PLoRA 5 (Eqs. 6 and 7), with w = rank * tokens and T over phases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.packing.records import ItemType, PackingProblem

__all__ = ["BestPack", "PackLimits", "best_pack"]

# resolution of weights and seconds inside the integer programs; q w and p T stay below 2^63
RESOLUTION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PackLimits:
    """Limits of one F(d, K).

    Attributes:
        work_limit: The solver's deterministic work units (about seconds) for each guess.
        most_guesses: Guesses of lambda; a handful suffices.
    """

    work_limit: float = 0.5
    most_guesses: int = 30


@dataclass(frozen=True, kw_only=True)
class BestPack:
    """A pack as counts of types, its weight and exact seconds, and whether it was proven best."""

    counts: tuple[tuple[ItemType, int], ...]
    weight: float
    seconds: float
    is_proven: bool
    num_solves: int

    @property
    def ratio(self) -> float:
        return self.weight / self.seconds


def best_pack(
    available: Mapping[ItemType, int],
    *,
    num_gpus: int,
    problem: PackingProblem,
    weights: Mapping[ItemType, float],
    at_most_seconds: float = math.inf,
    limits: PackLimits | None = None,
) -> BestPack | None:
    """Return the pack with the most weight per second; None when no trial fits.

    Args:
        num_gpus: Its degree, one of the problem's.
        weights: What one trial of each type counts, above 0.
    """
    limits = limits or PackLimits()
    cost = problem.cost.by_num_gpus[num_gpus]
    # What cannot stand in any pack would only add variables.
    types = [type_ for type_, count in available.items() if count > 0 and _fits_alone(type_, num_gpus, problem)]
    types = [type_ for type_ in types if _seconds([(type_, 1)], cost) <= at_most_seconds]
    if not types:
        return None
    types.sort(key=lambda type_: (type_.work.num_steps, type_.work.num_tokens, type_.work.r, type_.state_bytes))
    program = _Program(types, available, num_gpus=num_gpus, problem=problem, weights=weights, limit=at_most_seconds)
    # the best uniform pack is the first guess; it is often the best of all
    best = max((pack for type_ in types for pack in _uniform(type_, program)), key=lambda pack: program.ratio(pack))
    is_proven = False
    solves = 0
    for _ in range(limits.most_guesses):
        # Dinkelbach: the ratio of the pack found becomes the next guess, until no pack is better than the guess.
        found, is_proven = program.solve(best, limits)
        solves += 1
        if found is None or not program.is_better(found, best):
            break
        best = found
    counts = tuple((type_, count) for type_, count in zip(types, best, strict=True) if count)
    return BestPack(
        counts=counts,
        weight=sum(weights[type_] * count for type_, count in counts),
        seconds=_seconds(counts, cost),
        is_proven=is_proven,
        num_solves=solves,
    )


def _seconds(counts: Sequence[tuple[ItemType, int]], cost: StepCost) -> float:
    steps = sorted({0, *(type_.work.num_steps for type_, _ in counts)})
    total = 0.0
    for since, until in pairwise(steps):
        active = [(type_.work, count) for type_, count in counts if type_.work.num_steps >= until]
        tokens = sum(work.num_tokens * count for work, count in active)
        step = cost.fixed_seconds + sum(cost.own_seconds(work) * count for work, count in active)
        step += sum(knee.seconds_per_token * max(0.0, tokens - knee.at_tokens) for knee in cost.knees)
        total += (until - since) * step
    return total


def _fits_alone(type_: ItemType, num_gpus: int, problem: PackingProblem) -> bool:
    state = dict(type_.state_bytes)[num_gpus]
    return problem.pass_bytes(type_.work.num_tokens) + state <= problem.room_bytes[num_gpus]


def _uniform(type_: ItemType, program: _Program) -> list[tuple[int, ...]]:
    """Return feasible packs of one type: of 1, 2, 4, ... and as many as there are."""
    place = program.types.index(type_)
    most = program.available[place]
    sizes = sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)})
    packs = [tuple(size if index == place else 0 for index in range(len(program.types))) for size in sizes]
    return [pack for pack in packs if program.allows(pack)]


class _Program:
    """The integer program of one (d, K): built once, solved for each guess."""

    def __init__(
        self,
        types: Sequence[ItemType],
        available: Mapping[ItemType, int],
        *,
        num_gpus: int,
        problem: PackingProblem,
        weights: Mapping[ItemType, float],
        limit: float,
    ) -> None:
        self.types = list(types)
        self.available = [available[type_] for type_ in types]
        self.limit = limit
        self.cost = problem.cost.by_num_gpus[num_gpus]
        self.room = problem.room_bytes[num_gpus] - problem.activation_bytes
        per_token = problem.activation_bytes_per_token
        if problem.token_budget is not None:
            # Larger steps are split into micro-batches of the budget, so activations do not grow with the pack.
            self.room -= per_token * problem.token_budget
            per_token = 0.0
        states = [dict(type_.state_bytes)[num_gpus] for type_ in types]
        self.most_trials = problem.most_trials
        self.bytes = [state + per_token * type_.work.num_tokens for state, type_ in zip(states, types, strict=True)]
        alone = [_seconds([(type_, 1)], self.cost) for type_ in types]
        # a pack is never slower than its members one after the other
        self.second_unit = min(sum(a * n for a, n in zip(alone, self.available, strict=True)), limit) / RESOLUTION
        largest = sum(weights[type_] * count for type_, count in zip(types, self.available, strict=True))
        self.weight_unit = largest / RESOLUTION
        self.weights = [max(1, round(weights[type_] / self.weight_unit)) for type_ in types]
        self._build()

    def _build(self) -> None:
        self.model = cp_model.CpModel()
        self.counts = [self.model.new_int_var(0, count, "") for count in self.available]
        self._limit_bytes()
        steps = sorted({0, *(type_.work.num_steps for type_ in self.types)})
        unit = self.second_unit
        seconds: list[cp_model.LinearExprT] = []
        for count, type_ in zip(self.counts, self.types, strict=True):
            own = self.cost.own_seconds(type_.work) * type_.work.num_steps
            seconds.append(round(own / unit) * count)
        self.scale = _token_scale([type_.work for type_ in self.types])
        self.phases = list(pairwise(steps))
        for since, until in self.phases:
            active = [
                (count, type_, most)
                for count, type_, most in zip(self.counts, self.types, self.available, strict=True)
                if type_.work.num_steps >= until
            ]
            # The fixed part of a step is paid once a phase, if any member still trains.
            used = self.model.new_bool_var("")
            for count, _, most in active:
                self.model.add(count <= most * used)
            fixed = round(self.cost.fixed_seconds * (until - since) / unit)
            seconds.append(fixed * used)
            tokens = sum(round(type_.work.num_tokens / self.scale) * count for count, type_, _ in active)
            most_tokens = sum(round(type_.work.num_tokens / self.scale) * most for _, type_, most in active)
            for knee in self.cost.knees:
                start = round(knee.at_tokens / self.scale)
                slope = round(knee.seconds_per_token * self.scale * (until - since) / unit)
                if start < most_tokens and slope:
                    # Only a lower bound: seconds are minimised, so the variable comes to rest on max(0, tokens - knee).
                    beyond = self.model.new_int_var(0, most_tokens - start, "")
                    self.model.add(beyond >= tokens - start)
                    seconds.append(slope * beyond)
        self.seconds = sum(seconds)
        if math.isfinite(self.limit):
            self.model.add(self.seconds <= int(self.limit / unit))
        # The empty pack has weight 0 and no seconds, a ratio of nothing.
        self.model.add(sum(self.counts) >= 1)

    def _limit_bytes(self) -> None:
        # rounded against the pack, so that what the program allows does fit
        unit = max(self.room, 1.0) / (1 << 40)
        sizes = [math.ceil(size / unit) for size in self.bytes]
        used = sum(size * count for size, count in zip(sizes, self.counts, strict=True))
        self.model.add(used <= int(self.room / unit))
        if self.most_trials is not None:
            self.model.add(sum(self.counts) <= self.most_trials)

    def allows(self, pack: Sequence[int]) -> bool:
        """Return whether a pack, as counts in the order of types, fits memory and time."""
        size = sum(size * count for size, count in zip(self.bytes, pack, strict=True))
        has_slots = self.most_trials is None or sum(pack) <= self.most_trials
        return has_slots and size <= self.room and self.exact_seconds(pack) <= self.limit

    def exact_seconds(self, pack: Sequence[int]) -> float:
        return _seconds([(type_, count) for type_, count in zip(self.types, pack, strict=True) if count], self.cost)

    def weight(self, pack: Sequence[int]) -> int:
        return sum(weight * count for weight, count in zip(self.weights, pack, strict=True))

    def ratio(self, pack: Sequence[int]) -> float:
        return self.weight(pack) / self.exact_seconds(pack)

    def is_better(self, pack: Sequence[int], other: Sequence[int]) -> bool:
        """Return whether ``pack`` has more weight per second by more than the program's resolution."""
        return self.allows(pack) and self.ratio(pack) > self.ratio(other) * (1 + 1e-7)

    def solve(self, guess: Sequence[int], limits: PackLimits) -> tuple[tuple[int, ...] | None, bool]:
        """Return the pack with the largest q w - p T for the ratio p / q of ``guess``, and whether that is proven."""
        p = self.weight(guess)
        q = max(1, round(self.exact_seconds(guess) / self.second_unit))
        self.model.maximize(
            q * sum(weight * count for weight, count in zip(self.weights, self.counts, strict=True)) - p * self.seconds
        )
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = limits.work_limit
        # packs within a hair of the best are as good: the guesses differ by more
        solver.parameters.relative_gap_limit = 0.0
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, status == cp_model.INFEASIBLE
        return tuple(solver.value(count) for count in self.counts), status == cp_model.OPTIMAL


def _token_scale(works: Sequence[AdapterWork]) -> float:
    """Return the tokens that knees are counted in: the common divisor of whole counts, else about a thousandth."""
    tokens = [work.num_tokens for work in works]
    if all(float(count).is_integer() and count > 0 for count in tokens):
        return float(math.gcd(*(int(count) for count in tokens)))
    return max(max(tokens) / 1000, 1e-9)
