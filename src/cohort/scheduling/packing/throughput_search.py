"""DTM(G, K): packs and degrees for the GPUs that are free now, with the most weight per second together.

For each degree that fits, the best pack F(d, K), then the same for the GPUs and trials that are left. Branches that
cannot reach the best candidate are cut: F never grows when trials are taken away, so a branch is worth at most what it
has plus its free GPUs at the best weight per second and GPU of the root.

Source: PLoRA Algorithm 1. As printed it returns the candidate of least time, which favours scheduling nothing much;
here candidates that leave trials over are compared by Eq. 1, and by makespan only those that finish all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.scheduling.packing.best_pack import BestPack, PackLimits, best_pack
from cohort.scheduling.packing.records import ItemType, PackingProblem

__all__ = ["ChosenPack", "ThroughputSearch"]

Counts = tuple[int, ...]

# with this few trials left every candidate is looked at: the plan's end is decided here
FEW_TRIALS = 6


@dataclass(frozen=True, kw_only=True)
class ChosenPack:
    """A pack and its degree."""

    num_gpus: int
    pack: BestPack


@dataclass(kw_only=True)
class _Candidates:
    """The best candidates of one search so far, and the branches it may still open."""

    throughput: float = -1.0
    chosen: tuple[ChosenPack, ...] = ()
    shortest: float = math.inf
    finishing: tuple[ChosenPack, ...] = ()
    branches_left: int = 0


@dataclass(kw_only=True)
class ThroughputSearch:
    """DTM with memoised packs: trials of equal type are interchangeable, so the state is a count per type.

    Attributes:
        weights: What one trial of each type counts.
        most_branches: Branches one search opens beyond its first candidate.
        num_solves, num_unproven: Integer programs so far, and those that hit their limit.
    """

    problem: PackingProblem
    weights: Mapping[ItemType, float]
    limits: PackLimits = field(default_factory=PackLimits)
    most_branches: int = 24
    num_solves: int = 0
    num_unproven: int = 0
    _packs: dict[tuple[int, Counts, float], BestPack | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types = tuple(self.weights)

    def choose(
        self, num_free: int, available: Mapping[ItemType, int], *, at_most_seconds: float = math.inf
    ) -> tuple[ChosenPack, ...]:
        """Return packs that start now on ``num_free`` GPUs; none when no trial fits on them within the time."""
        counts = tuple(available.get(type_, 0) for type_ in self.types)
        degrees = [degree for degree in self.problem.degrees if degree <= num_free]
        densities = {}
        for degree in degrees:
            pack = self._pack(degree, counts, at_most_seconds)
            if pack is not None:
                densities[degree] = pack.ratio / degree
        if not densities:
            return ()
        # the most efficient degree first: its candidate cuts most of the others
        order = sorted(densities, key=lambda degree: (-densities[degree], degree))
        best = _Candidates(branches_left=self.most_branches)
        self._branch(num_free, counts, (), best, order=order, density=max(densities.values()), limit=at_most_seconds)
        if best.finishing:
            # the optimistic end of the other candidate: everything at its present throughput
            everything = sum(self.weights[type_] * count for type_, count in zip(self.types, counts, strict=True))
            if not best.chosen or best.shortest <= everything / best.throughput:
                return best.finishing
        return best.chosen or best.finishing

    def _branch(
        self,
        num_free: int,
        counts: Counts,
        so_far: tuple[ChosenPack, ...],
        best: _Candidates,
        *,
        order: list[int],
        density: float,
        limit: float,
    ) -> None:
        throughput = sum(chosen.pack.ratio for chosen in so_far)
        if not any(counts):
            longest = max((chosen.pack.seconds for chosen in so_far), default=0.0)
            if longest < best.shortest:
                best.shortest, best.finishing = longest, so_far
            return
        is_leaf = True
        for place, degree in enumerate(degree for degree in order if degree <= num_free):
            # F never grows when trials are taken away, so free GPUs are worth at most the root's best density.
            may_prune = sum(counts) > FEW_TRIALS and best.throughput >= 0
            if may_prune and throughput + num_free * density <= best.throughput * (1 + 1e-9):
                return
            # The first degree is always followed to the end, so that some candidate exists when branches run out.
            if place and best.chosen + best.finishing:
                if not best.branches_left:
                    return
                best.branches_left -= 1
            pack = self._pack(degree, counts, limit)
            if pack is None:
                continue
            reachable = throughput + pack.ratio + (num_free - degree) * density
            if may_prune and reachable <= best.throughput * (1 + 1e-9):
                continue
            is_leaf = False
            taken = dict(pack.counts)
            left = tuple(count - taken.get(type_, 0) for type_, count in zip(self.types, counts, strict=True))
            chosen = (*so_far, ChosenPack(num_gpus=degree, pack=pack))
            self._branch(num_free - degree, left, chosen, best, order=order, density=density, limit=limit)
        if is_leaf and throughput > best.throughput:
            best.throughput, best.chosen = throughput, so_far

    def _pack(self, degree: int, counts: Counts, limit: float) -> BestPack | None:
        # Different orders of choosing reach the same rest of trials; an integer program costs far more than a lookup.
        key = (degree, counts, limit)
        if key not in self._packs:
            found = best_pack(
                dict(zip(self.types, counts, strict=True)),
                num_gpus=degree,
                problem=self.problem,
                weights=self.weights,
                at_most_seconds=limit,
                limits=self.limits,
            )
            self._packs[key] = found
            if found is not None:
                self.num_solves += found.num_solves
                self.num_unproven += not found.is_proven
        return self._packs[key]
