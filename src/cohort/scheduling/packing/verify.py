"""The independent checker of pack plans: faults in words, and a bound over all packings by another kind of solver.

The bound is an area: any plan holds its GPUs for at least the least GPU-seconds in which packs can cover all trials.
Prices of trials such that no pack of the cluster is cheaper than its members' prices prove it: sum of prices over G.
Prices come from a linear program over packs that grows column by column (Gilmore and Gomory); the test that no pack
is cheaper is a mixed-integer program of HiGHS, whose own bound is used, so that its tolerance weakens the bound but
never makes it wrong (Farley). PLoRA's weights are one choice of prices, and a poor one where ranks differ.

It shares with the planner only the records and the definition of a pack's seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.packing.records import PackingProblem, PackItem, PackPlan
from cohort.scheduling.placement.verify import PlanError

__all__ = ["PackingBound", "check_pack_plan", "find_pack_faults", "packing_lower_bound"]

TOLERANCE = 1e-9
# prices are good enough when no pack is cheaper by more than this share: the bound is that much below the best
PRICE_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class PackingBound:
    """Seconds before which no plan of these trials on these GPUs can end.

    Attributes:
        seconds: The larger of the two below.
        longest_seconds: The trial that takes longest alone at its fastest degree.
        area_seconds: Least GPU-seconds over all packings, per GPU.
        is_tight: Whether the area is the linear program's optimum within about a thousandth.
    """

    seconds: float
    longest_seconds: float
    area_seconds: float
    is_tight: bool


def check_pack_plan(plan: PackPlan, problem: PackingProblem) -> None:
    """Refuse a plan with faults.

    Raises:
        PlanError: with all of :func:`find_pack_faults`.
    """
    faults = find_pack_faults(plan, problem)
    if faults:
        raise PlanError(faults)


def find_pack_faults(plan: PackPlan, problem: PackingProblem) -> tuple[str, ...]:
    """Return everything that is wrong with ``plan``, in words; empty when it is a plan for ``problem``."""
    faults = []
    by_id = {trial.trial_id: trial for trial in problem.trials}
    placed = Counter(trial_id for job in plan.jobs for trial_id in job.trial_ids)
    # Faults of single packs mean nothing while trials are lost or doubled.
    if placed != Counter(by_id.keys()):
        missing, extra = sorted(by_id.keys() - placed.keys()), sorted((placed - Counter(by_id.keys())).elements())
        return (f"trials {missing} are in no pack, and trials {extra} are unknown or in several",)
    slack = TOLERANCE * max(plan.makespan_seconds, 1.0)
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for job in plan.jobs:
        name = f"the pack of trials {list(job.trial_ids)}"
        pack = [by_id[trial_id] for trial_id in job.trial_ids]
        if not set(job.gpu_ids) <= set(range(problem.num_gpus)) or len(set(job.gpu_ids)) != len(job.gpu_ids):
            faults.append(f"{name} is on {job.gpu_ids}, which are not GPUs 0 to {problem.num_gpus - 1}")
        if job.num_gpus not in problem.degrees:
            faults.append(f"{name} is on {job.num_gpus} GPUs; allowed are {problem.degrees}")
            continue
        if not problem.fits(pack, num_gpus=job.num_gpus):
            faults.append(f"{name} does not fit in the memory of {job.num_gpus} GPUs")
        seconds = problem.seconds(pack, num_gpus=job.num_gpus)
        if job.start_seconds < 0 or abs(job.end_seconds - job.start_seconds - seconds) > slack:
            faults.append(f"{name} takes {seconds} s, but is planned from {job.start_seconds} to {job.end_seconds}")
        for gpu in job.gpu_ids:
            by_gpu.setdefault(gpu, []).append((job.start_seconds, job.end_seconds))
    for gpu, held in sorted(by_gpu.items()):
        for (_, end), (start, _) in pairwise(sorted(held)):
            if start < end - slack:
                faults.append(f"GPU {gpu} is held twice at {start}")
    return tuple(faults)


def packing_lower_bound(problem: PackingProblem, *, most_rounds: int = 200) -> PackingBound:
    """Return the bound over all packings.

    Args:
        most_rounds: Rounds of column generation; fewer make the bound weaker, not wrong.
    """
    kinds = _Kinds.of(problem)
    longest = max(
        min(problem.seconds([trial], num_gpus=d) for d in problem.degrees if problem.fits([trial], num_gpus=d))
        for trial in kinds.examples
    )
    columns, costs = kinds.uniform_columns()
    pricing = {degree: _Pricing(kinds, degree=degree) for degree in problem.degrees}
    smallest = {
        degree: min(degree * problem.seconds([trial], num_gpus=degree) for trial in kinds.examples)
        for degree in problem.degrees
    }
    area = 0.0
    is_tight = False
    priced: set[tuple[int, tuple[int, ...]]] = set()
    for _ in range(most_rounds):
        master = linprog(
            costs, A_ub=-np.array(columns, dtype=float).T, b_ub=-np.array(kinds.counts, dtype=float), method="highs"
        )
        prices = np.maximum(-np.asarray(master.ineqlin.marginals), 0.0)
        # no pack's prices exceed this multiple of its GPU-seconds: what a pack gains above the tolerated multiple is
        # at most the program's bound, and no pack costs less than the cheapest trial alone
        multiple = 1 + PRICE_TOLERANCE
        has_grown = False
        for degree, program in pricing.items():
            pack, bound = program.best(prices / (1 + PRICE_TOLERANCE))
            multiple = max(multiple, (1 + PRICE_TOLERANCE) * (1 + bound / smallest[degree]))
            # A pack that was added once gains nothing more: only the tolerance of the program offers it again.
            if pack is not None and bound > TOLERANCE * smallest[degree] and (degree, tuple(pack)) not in priced:
                priced.add((degree, tuple(pack)))
                columns.append(pack)
                costs.append(degree * kinds.seconds(pack, num_gpus=degree))
                has_grown = True
        # Every round gives a valid bound (Farley); later prices may give a weaker one.
        area = max(area, float(prices @ np.array(kinds.counts)) / multiple / problem.num_gpus)
        is_tight = multiple <= 1 + 2 * PRICE_TOLERANCE
        if is_tight or not has_grown:
            break
    return PackingBound(seconds=max(longest, area), longest_seconds=longest, area_seconds=area, is_tight=is_tight)


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """Trials that differ in nothing, counted."""

    problem: PackingProblem
    examples: tuple[PackItem, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, problem: PackingProblem) -> _Kinds:
        found: dict[tuple[AdapterWork, tuple[tuple[int, int], ...]], list[PackItem]] = {}
        for trial in problem.trials:
            found.setdefault((trial.work, tuple(sorted(trial.state_bytes.items()))), []).append(trial)
        groups = list(found.values())
        return cls(
            problem=problem, examples=tuple(group[0] for group in groups), counts=tuple(len(group) for group in groups)
        )

    def members(self, pack: Sequence[int]) -> list[PackItem]:
        return [example for example, count in zip(self.examples, pack, strict=True) for _ in range(count)]

    def seconds(self, pack: Sequence[int], *, num_gpus: int) -> float:
        return self.problem.seconds(self.members(pack), num_gpus=num_gpus)

    def uniform_columns(self) -> tuple[list[Sequence[int]], list[float]]:
        """Return packs of one kind in every size that fits, and their GPU-seconds."""
        columns: list[Sequence[int]] = []
        costs: list[float] = []
        for place, (example, most) in enumerate(zip(self.examples, self.counts, strict=True)):
            for degree in self.problem.degrees:
                for count in range(1, most + 1):
                    if not self.problem.fits([example] * count, num_gpus=degree):
                        break
                    columns.append([count if index == place else 0 for index in range(len(self.counts))])
                    costs.append(degree * self.problem.seconds([example] * count, num_gpus=degree))
        return columns, costs


class _Pricing:
    """Max of prices - d * T over packs on d GPUs, as a mixed-integer program.

    Variables: counts by kind, then a 0/1 "somebody trains" and seconds beyond each knee by phase.
    """

    def __init__(self, kinds: _Kinds, *, degree: int) -> None:
        self.kinds, self.degree = kinds, degree
        self.cost: StepCost = kinds.problem.cost.by_num_gpus[degree]
        works = [example.work for example in kinds.examples]
        self.phases = list(pairwise(sorted({0, *(work.num_steps for work in works)})))
        knees = self.cost.knees
        num_kinds, num_phases = len(works), len(self.phases)
        size = num_kinds + num_phases * (1 + len(knees))
        own = [degree * self.cost.own_seconds(work) * work.num_steps for work in works]
        fixed = [degree * self.cost.fixed_seconds * (until - since) for since, until in self.phases]
        self.price_of_time = np.array(own + fixed + [1.0] * (num_phases * len(knees)))
        rows: list[NDArray[np.float64]] = []
        limits: list[float] = []
        for phase, (since, until) in enumerate(self.phases):
            for kind, work in enumerate(works):
                if work.num_steps >= until:
                    row = np.zeros(size)
                    row[kind], row[num_kinds + phase] = 1.0, -kinds.counts[kind]
                    rows.append(row)
                    limits.append(0.0)
            for place, knee in enumerate(knees):
                slope = degree * knee.seconds_per_token * (until - since)
                row = np.zeros(size)
                row[:num_kinds] = [slope * work.num_tokens * (work.num_steps >= until) for work in works]
                row[num_kinds + num_phases + phase * len(knees) + place] = -1.0
                rows.append(row)
                limits.append(slope * knee.at_tokens)
        row = np.zeros(size)
        row[:num_kinds], room = self._bytes(kinds, degree)
        rows.append(row / max(room, 1.0))
        limits.append(1.0)
        if kinds.problem.most_trials is not None:
            row = np.zeros(size)
            row[:num_kinds] = 1.0
            rows.append(row)
            limits.append(float(kinds.problem.most_trials))
        self.constraints = LinearConstraint(np.array(rows), -np.inf, np.array(limits))
        self.integrality = np.array([1] * (num_kinds + num_phases) + [0] * (num_phases * len(knees)))
        upper = [float(count) for count in kinds.counts] + [1.0] * num_phases + [np.inf] * (num_phases * len(knees))
        self.bounds = Bounds(0.0, np.array(upper))

    @staticmethod
    def _bytes(kinds: _Kinds, degree: int) -> tuple[list[float], float]:
        """Return bytes of each kind's trial and the room for all."""
        problem = kinds.problem
        room = problem.room_bytes[degree] - problem.pass_bytes(0.0)
        per_token = 0.0 if problem.token_budget is not None else problem.activation_bytes_per_token
        sizes = [example.state_bytes[degree] + per_token * example.work.num_tokens for example in kinds.examples]
        return sizes, room

    def best(self, prices: NDArray[np.float64]) -> tuple[list[int] | None, float]:
        """Return the best pack found, None for the empty one, and a proven bound on what any pack gains."""
        gains = np.zeros_like(self.price_of_time)
        gains[: len(prices)] = prices
        found = milp(
            self.price_of_time - gains,
            constraints=self.constraints,
            integrality=self.integrality,
            bounds=self.bounds,
            # The gap is accounted for: the bound used is the solver's own, not the value of the pack it found.
            options={"mip_rel_gap": 1e-4, "presolve": False},
        )
        bound = max(0.0, -float(found.mip_dual_bound))
        if found.x is None:
            return None, bound
        pack = [round(float(count)) for count in found.x[: len(prices)]]
        members = self.kinds.members(pack)
        if not members or not self.kinds.problem.fits(members, num_gpus=self.degree):
            return None, bound
        return pack, bound
