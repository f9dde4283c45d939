"""The exact packing model for small instances: the yardstick that planners are held to in tests and benchmarks.

PLoRA's App. A: jobs are given trials (H), devices (X) and start times (s); two jobs that share a device (W) are ordered
(Z). As printed, its ordering constraints are infeasible: (11) and (12) bind both orders at once. Here, for each pair of
jobs that share a device, with Z = 1 when j goes first:

    s_j' >= s_j + T_j - M (2 - W - Z)        s_j >= s_j' + T_j' - M (1 - W + Z)

A job's T is looked up: every feasible pack and degree is listed, so that instances must be small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ortools.sat.python import cp_model

from cohort.scheduling.packing.records import PackingProblem, PackItem, PackJob, PackPlan

__all__ = ["OraclePlan", "solve_exactly"]

MOST_TRIALS = 6
# time units of the trials one after the other; seconds are rounded down, so that the optimum stays a lower bound
UNITS = 100_000


@dataclass(frozen=True, kw_only=True)
class OraclePlan:
    """The best plan, and whether that is proven."""

    plan: PackPlan
    is_proven: bool


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A pack that a job may be: its trials, degree and seconds."""

    trials: tuple[PackItem, ...]
    num_gpus: int
    seconds: float


def solve_exactly(problem: PackingProblem, *, work_limit: float = 20.0) -> OraclePlan | None:
    """Return the best plan, within rounding of a hundred-thousandth; None when the limit came before any plan.

    Raises:
        InputError: a trial fits nowhere, or there are no GPUs.
        ValueError: more trials than can be listed.
    """
    problem.check_plannable()
    if len(problem.trials) > MOST_TRIALS:
        raise ValueError(f"the exact model takes at most {MOST_TRIALS} trials, but there are {len(problem.trials)}")
    columns = _columns(problem)
    unit = max(sum(min(c.seconds for c in columns if c.trials == (t,)) for t in problem.trials), 1e-9) / UNITS
    return _Model(problem, columns, unit=unit).solve(work_limit)


def _columns(problem: PackingProblem) -> list[_Column]:
    return [
        _Column(trials=pack, num_gpus=degree, seconds=problem.seconds(pack, num_gpus=degree))
        for size in range(1, len(problem.trials) + 1)
        for pack in combinations(problem.trials, size)
        for degree in problem.degrees
        if problem.fits(pack, num_gpus=degree)
    ]


class _Model:
    """App. A's variables and constraints, with jobs that may stay empty."""

    def __init__(self, problem: PackingProblem, columns: Sequence[_Column], *, unit: float) -> None:
        self.problem, self.columns, self.unit = problem, columns, unit
        self.model = model = cp_model.CpModel()
        jobs = range(len(problem.trials))
        times = [math.floor(column.seconds / unit) for column in columns]
        horizon = sum(max(times) for _ in jobs)
        self.is_column = [[model.new_bool_var("") for _ in columns] for _ in jobs]
        self.on_device = [[model.new_bool_var("") for _ in range(problem.num_gpus)] for _ in jobs]
        self.starts = [model.new_int_var(0, horizon, "") for _ in jobs]
        self.end = model.new_int_var(0, horizon, "")
        lengths = []
        for job in jobs:
            chosen = self.is_column[job]
            model.add_at_most_one(chosen)
            degree = sum(column.num_gpus * bit for column, bit in zip(columns, chosen, strict=True))
            model.add(sum(self.on_device[job]) == degree)
            lengths.append(sum(time * bit for time, bit in zip(times, chosen, strict=True)))
            model.add(self.end >= self.starts[job] + lengths[job])
        for trial in problem.trials:
            model.add_exactly_one(
                bit
                for job in jobs
                for column, bit in zip(columns, self.is_column[job], strict=True)
                if trial in column.trials
            )
        for one, other in combinations(jobs, 2):
            shares, first = model.new_bool_var("W"), model.new_bool_var("Z")
            for device in range(problem.num_gpus):
                model.add(shares >= self.on_device[one][device] + self.on_device[other][device] - 1)
            big = 2 * horizon
            model.add(self.starts[other] >= self.starts[one] + lengths[one] - big * (2 - shares - first))
            model.add(self.starts[one] >= self.starts[other] + lengths[other] - big * (1 - shares + first))
        # jobs are interchangeable: the chosen columns stand in order
        places = [sum(place * bit for place, bit in enumerate(self.is_column[job], start=1)) for job in jobs]
        for one, other in pairwise(jobs):
            model.add(places[one] >= places[other])
        model.minimize(self.end)

    def solve(self, work_limit: float) -> OraclePlan | None:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = work_limit
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        free = [0.0] * self.problem.num_gpus
        jobs = []
        order = sorted(range(len(self.starts)), key=lambda job: solver.value(self.starts[job]))
        for job in order:
            column = next(
                (c for c, bit in zip(self.columns, self.is_column[job], strict=True) if solver.value(bit)), None
            )
            if column is None:
                continue
            gpus = tuple(device for device, bit in enumerate(self.on_device[job]) if solver.value(bit))
            start = max(free[gpu] for gpu in gpus)
            for gpu in gpus:
                free[gpu] = start + column.seconds
            jobs.append(
                PackJob(
                    trial_ids=tuple(sorted(trial.trial_id for trial in column.trials)),
                    gpu_ids=gpus,
                    start_seconds=start,
                    end_seconds=start + column.seconds,
                )
            )
        plan = PackPlan(jobs=tuple(jobs), num_gpus=self.problem.num_gpus, policy="exact model", num_solves=1)
        return OraclePlan(plan=plan, is_proven=status == cp_model.OPTIMAL)
