"""A plan from the packs that fair prices are made of: whole packs that cover all trials in the least GPU-seconds.

The linear program behind the prices buys fractions of packs. Here an integer program buys whole ones from the same
packs; what it covers more than once is taken out again, and the packs are placed longest first. Its limit is counted
in branches, so that plans do not depend on the machine's speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from cohort.scheduling.packing.prices import PricedPack
from cohort.scheduling.packing.records import ItemType, PackingProblem, PackItem, PackJob, jobs_in_order

__all__ = ["cover_jobs"]

# a cover within this share of the best is good enough: placing the packs costs more
GAP = 0.01


def cover_jobs(
    packs: Sequence[PricedPack], problem: PackingProblem, *, at_most_seconds: float, most_branches: int
) -> tuple[PackJob, ...] | None:
    """Return jobs made of ``packs`` that train every trial once; None where these packs cannot.

    Args:
        packs: What to choose from; any number of each.
    """
    allowed = [pack for pack in packs if pack.seconds <= at_most_seconds]
    demand = {type_: len(trials) for type_, trials in problem.by_type.items()}
    covered = {type_ for pack in allowed for type_, _ in pack.counts}
    # Short packs alone may not hold every trial (some are longer than the limit by themselves).
    if covered != set(demand):
        return None
    chosen = _cover(allowed, demand, most_branches=most_branches)
    if chosen is None:
        return None
    placed = [(pack.num_gpus, members) for pack, members in _trimmed(chosen, demand, problem) if members]
    return _place(placed, problem)


def _cover(packs: Sequence[PricedPack], demand: dict[ItemType, int], *, most_branches: int) -> list[PricedPack] | None:
    """Return packs, some several times, that hold at least ``demand``."""
    place = {type_: index for index, type_ in enumerate(demand)}
    members = np.zeros((len(demand), len(packs)))
    for column, pack in enumerate(packs):
        for type_, count in pack.counts:
            members[place[type_], column] = count
    found = milp(
        [pack.num_gpus * pack.seconds for pack in packs],
        # At least, not exactly: covering a trial twice and dropping it later keeps the program feasible and quick.
        constraints=LinearConstraint(members, lb=list(demand.values()), ub=np.inf),
        integrality=np.ones(len(packs)),
        bounds=Bounds(0, max(demand.values())),
        # Branches, not seconds, limit it: the same packs make the same cover on every machine. Some presolves of HiGHS
        # print a debugging line, which would spoil --json; without one it is no slower here (docs/decisions/0012).
        options={"mip_rel_gap": GAP, "node_limit": most_branches, "presolve": False},
    )
    if found.x is None:
        return None
    return [pack for pack, times in zip(packs, found.x, strict=True) for _ in range(round(float(times)))]


def _trimmed(
    chosen: Sequence[PricedPack], demand: dict[ItemType, int], problem: PackingProblem
) -> list[tuple[PricedPack, list[PackItem]]]:
    """Return the packs with members, each trial in one; a trial covered twice leaves the pack where that saves most."""
    counts = [Counter(dict(pack.counts)) for pack in chosen]
    held = sum(counts, Counter())

    def area(place: int, without: ItemType | None = None) -> float:
        members = counts[place] - Counter([without]) if without is not None else counts[place]
        pack = [problem.by_type[type_][0] for type_, count in members.items() for _ in range(count)]
        degree = chosen[place].num_gpus
        return degree * problem.seconds(pack, num_gpus=degree) if pack else 0.0

    for type_, most in demand.items():
        while held[type_] > most:
            places = [place for place, own in enumerate(counts) if own[type_]]
            best = max(places, key=lambda place: area(place) - area(place, type_))
            counts[best] -= Counter([type_])
            held[type_] -= 1
    left = {type_: iter(trials) for type_, trials in problem.by_type.items()}
    return [
        (pack, [next(left[type_]) for type_, count in own.items() for _ in range(count)])
        for pack, own in zip(chosen, counts, strict=True)
    ]


def _place(packs: Sequence[tuple[int, list[PackItem]]], problem: PackingProblem) -> tuple[PackJob, ...]:
    """Return jobs, the longest packs first, each on the GPUs that are free earliest."""
    timed = [(problem.seconds(members, num_gpus=degree), degree, members) for degree, members in packs]
    # Wide packs first, then long ones: a wide pack placed late waits for several GPUs and leaves them idle.
    timed.sort(key=lambda entry: (-entry[1], -entry[0], entry[2][0].trial_id))
    return jobs_in_order(((members, degree, seconds) for seconds, degree, members in timed), num_gpus=problem.num_gpus)
