"""The offline packing planner: which trials train together, at what degree, on which GPUs, when.

The job planner is PLoRA's: whenever GPUs are free in simulated time, DTM chooses packs for them; then time moves on to
the next completion. Several plans are made and the shortest is kept:

- with PLoRA's weights (rank * tokens), and with fair prices in GPU-seconds (prices.py);
- without a deadline, and with deadlines a little above the prices' total per GPU: no pack may end later, so that the
  last packs are as long as the time that is left. This removes most of the tail that PLoRA App. D bounds.

Before these, a plan is made of whole packs out of those that the fair prices come from (cover.py): where it is within
a few percent of their total it is the plan, and nothing else is tried.

Each plan's last ends are then evened out (balancing.py).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.scheduling.packing.balancing import balance_jobs
from cohort.scheduling.packing.best_pack import PackLimits
from cohort.scheduling.packing.cover import cover_jobs
from cohort.scheduling.packing.prices import PricedPack, fair_prices, rank_weights, uniform_prices
from cohort.scheduling.packing.records import ItemType, PackingProblem, PackJob, PackPlan
from cohort.scheduling.packing.throughput_search import ThroughputSearch

__all__ = ["PackingSettings", "plan_packs"]


# pack prices may undercut fair prices by about this share before a deadline is given up
SLACK = 0.03


@dataclass(frozen=True, kw_only=True)
class PackingSettings:
    """What the planner tries.

    Attributes:
        good_enough: Stop once the plan ends within this share above the fair prices' total per GPU.
        most_rounding: Share that whole packs may cost above fractions of them for the plan to be good enough.
        cover_shares: Longest packs of the covers that are tried, as shares of that total per GPU.
        most_cover_branches: Limit of each cover's integer program.
        first_deadline: First end to aim at, as a share above that total; then halfway between what failed and what
            succeeded.
        most_deadlines: Ends to aim at in all.
        limits: When each integer program stops; deterministic.
        most_branches: Branches of each DTM search beyond its first candidate.
        most_solves: Integer programs after which no other deadline is tried; deterministic, unlike a time limit.
        most_balancing: Changes of each finished plan that are looked at to end it sooner.
    """

    good_enough: float = 0.03
    most_rounding: float = 0.08
    cover_shares: tuple[float, ...] = (1.0, 0.5)
    most_cover_branches: int = 400
    first_deadline: float = 0.06
    most_deadlines: int = 4
    limits: PackLimits = field(default_factory=PackLimits)
    most_branches: int = 24
    most_solves: int = 900
    most_balancing: int = 10_000


DEFAULTS = PackingSettings()


def plan_packs(problem: PackingProblem, *, settings: PackingSettings = DEFAULTS) -> PackPlan:
    """Return the shortest plan found; deterministic.

    Raises:
        InputError: a trial fits nowhere, or there are no GPUs.
    """
    problem.check_plannable()
    if not problem.trials:
        return PackPlan(jobs=(), num_gpus=problem.num_gpus, policy="nothing to plan")
    fair = fair_prices(problem, limits=settings.limits)
    attempts = _Attempts(problem=problem, settings=settings, fair=fair.by_type, num_solves=fair.num_solves)
    attempts.num_unproven = fair.num_unproven
    longest = _longest_alone(problem)
    # No plan ends before its longest trial, nor (nearly) before all GPU-seconds are used up.
    goal = max(fair.total / problem.num_gpus, longest)
    for share in settings.cover_shares:
        attempts.cover(fair.packs, at_most_seconds=max(longest, share * goal))
    # whole packs cannot be as cheap as fractions of them
    reachable = max(goal, min(attempts.least_area / problem.num_gpus, (1 + settings.most_rounding) * goal))
    if attempts.jobs and attempts.best.makespan_seconds <= (1 + settings.good_enough) * reachable:
        return attempts.best
    # A cover that is good enough saves the hundreds of integer programs of the search below.
    attempts.add("fair prices", fair.by_type)
    attempts.add("rank weights", rank_weights(problem))
    kinds = (("uniform prices", uniform_prices(problem)), ("fair prices", fair.by_type))
    missed = 1.0
    factor = 1 + settings.first_deadline
    for _ in range(settings.most_deadlines):
        reached = attempts.best.makespan_seconds / goal
        if reached <= (1 + settings.good_enough) * reachable / goal or attempts.num_solves >= settings.most_solves:
            break
        # Bisection between the last deadline that failed and the best end so far.
        if factor >= reached:
            factor = (missed + reached) / 2
        named = ((f"{name}, deadline {factor:.3f}", prices) for name, prices in kinds)
        if any(attempts.add(policy, prices, deadline=factor * goal) for policy, prices in named):
            factor = (missed + attempts.best.makespan_seconds / goal) / 2
        else:
            missed = factor
            factor = (missed + reached) / 2
    return attempts.best


@dataclass(kw_only=True)
class _Attempts:
    """The best plan so far and what it took."""

    problem: PackingProblem
    settings: PackingSettings
    fair: Mapping[ItemType, float]
    num_solves: int = 0
    num_unproven: int = 0
    jobs: tuple[PackJob, ...] = ()
    policy: str = ""
    least_area: float = math.inf

    def cover(self, packs: Sequence[PricedPack], *, at_most_seconds: float) -> None:
        """Plan with whole packs out of ``packs``, none longer than ``at_most_seconds``."""
        jobs = cover_jobs(
            packs, self.problem, at_most_seconds=at_most_seconds, most_branches=self.settings.most_cover_branches
        )
        self.num_solves += 1
        if jobs is not None:
            area = sum(job.num_gpus * (job.end_seconds - job.start_seconds) for job in jobs)
            self.least_area = min(self.least_area, area)
            self._take("cover", jobs)

    def _take(self, policy: str, jobs: tuple[PackJob, ...]) -> None:
        # Balanced before it is compared: the ends of an unbalanced plan say little about what it can become.
        jobs = balance_jobs(jobs, self.problem, most_evaluations=self.settings.most_balancing)
        if not self.jobs or _end(jobs) < _end(self.jobs):
            self.jobs, self.policy = jobs, policy

    def add(self, policy: str, weights: Mapping[ItemType, float], *, deadline: float = math.inf) -> bool:
        """Plan once more; return whether all trials met the deadline."""
        search = ThroughputSearch(
            problem=self.problem,
            weights=weights,
            limits=self.settings.limits,
            most_branches=self.settings.most_branches,
        )
        jobs = _plan_jobs(self.problem, search, fair=self.fair, deadline=deadline)
        self.num_solves += search.num_solves
        self.num_unproven += search.num_unproven
        if jobs is not None:
            self._take(policy, jobs)
        return jobs is not None

    @property
    def best(self) -> PackPlan:
        return PackPlan(
            jobs=self.jobs,
            num_gpus=self.problem.num_gpus,
            policy=self.policy,
            num_solves=self.num_solves,
            num_unproven=self.num_unproven,
        )


def _end(jobs: Sequence[PackJob]) -> float:
    return max(job.end_seconds for job in jobs)


def _longest_alone(problem: PackingProblem) -> float:
    """Return the seconds of the trial that takes longest alone at its fastest degree."""
    return max(
        min(problem.seconds([trial], num_gpus=d) for d in problem.degrees if problem.fits([trial], num_gpus=d))
        for trial, *_ in problem.by_type.values()
    )


def _plan_jobs(
    problem: PackingProblem, search: ThroughputSearch, *, fair: Mapping[ItemType, float], deadline: float
) -> tuple[PackJob, ...] | None:
    """Return the job planner's jobs; None when some trial would miss the deadline.

    ``fair`` tells early that the trials that are left cost more than the GPU-seconds that are left.
    """
    waiting = {type_: list(trials) for type_, trials in problem.by_type.items()}
    free = list(range(problem.num_gpus))
    busy: list[tuple[float, tuple[int, ...]]] = []
    jobs: list[PackJob] = []
    now = 0.0
    while True:
        available = {type_: len(trials) for type_, trials in waiting.items() if trials}
        if not available:
            break
        left = deadline - now
        room = left * problem.num_gpus - sum((end - now) * len(gpus) for end, gpus in busy)
        # No pack undercuts fair prices, so this deadline is lost already; the search would go on for long.
        if sum(fair[type_] * count for type_, count in available.items()) > room * (1 + SLACK):
            return None
        for choice in search.choose(len(free), available, at_most_seconds=left):
            members: list[int] = []
            for type_, count in choice.pack.counts:
                members += [trial.trial_id for trial in waiting[type_][:count]]
                del waiting[type_][:count]
            gpus, free = tuple(free[: choice.num_gpus]), free[choice.num_gpus :]
            end = now + choice.pack.seconds
            jobs.append(PackJob(trial_ids=tuple(sorted(members)), gpu_ids=gpus, start_seconds=now, end_seconds=end))
            heapq.heappush(busy, (end, gpus))
        if not busy:
            return None
        now, released = heapq.heappop(busy)
        free += released
        # GPUs that become free at the same moment are planned together: a wide pack may need them all.
        while busy and busy[0][0] <= now * (1 + 1e-12):
            free += heapq.heappop(busy)[1]
        free.sort()
    return tuple(sorted(jobs, key=lambda job: (job.start_seconds, job.gpu_ids)))
