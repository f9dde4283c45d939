"""Hyperband (Li et al. 2018): brackets of synchronous halving that begin at different shares of training."""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction

from cohort.core.seeds import derive_seed
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.early_exit.rule import RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING, CommonSettings, ExitRule
from cohort.tuning.early_exit.rungs import RungSettings, rung_steps_at, shares_from
from cohort.tuning.share_counts import exact_fraction

__all__ = ["EXIT_RULE", "HyperbandRule"]


class HyperbandRule(BarrierRule):
    """Bracket s halves at shares eta^-s, ..., eta^-1 of the planned steps; bracket 0 trains all its trials fully.

    The largest s is the last whose first rung is at or after ``first_share``. The candidates are given (a grid, or
    proposals of a sampler), so trials are dealt to brackets instead of drawn for them, in proportion to the paper's
    bracket sizes ceil((s_max + 1) / (s + 1) * eta^s) (as in Optuna's HyperbandPruner).
    """

    name = "hyperband"

    def __init__(
        self,
        *,
        first_share: float,
        reduction_factor: int,
        risk: float = 1.0,
        tolerance: float = 0.0,
        least_steps: int = 1,
    ) -> None:
        super().__init__(share=Fraction(1, reduction_factor), risk=risk, tolerance=tolerance, least_steps=least_steps)
        self._reduction_factor = reduction_factor
        # In exact fractions: a first share of 0.04 is the power 5**-2, and rounding must not lose its bracket.
        largest = 0
        while exact_fraction(first_share) * reduction_factor ** (largest + 1) <= 1:
            largest += 1
        self._bracket_sizes = tuple(
            math.ceil(Fraction(largest + 1, s + 1) * reduction_factor**s) for s in range(largest + 1)
        )

    def group(self, candidate: Candidate) -> int:
        # A hash of the id, not a counter: a resumed run, and one that adds trials, deals each to the same bracket.
        ticket = derive_seed("hyperband", candidate.trial_id) % sum(self._bracket_sizes)
        for bracket, size in enumerate(self._bracket_sizes):
            if ticket < size:
                return bracket
            ticket -= size
        raise AssertionError("a ticket below the sum of all sizes belongs to a bracket")

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        bracket = self.group(candidate)
        shares = tuple(Fraction(1, self._reduction_factor**power) for power in range(bracket, 0, -1))
        return rung_steps_at(candidate, self.floor.lifted(shares) if shares else ())


def _milestones(settings: RungSettings, common: CommonSettings, floor: Fraction) -> tuple[Fraction, ...]:
    # the last bracket meets at all powers that any other one meets at
    shares = itertools.accumulate(itertools.repeat(Fraction(1, settings.reduction_factor)), operator.mul)
    found = tuple(itertools.takewhile(lambda share: share >= exact_fraction(common.warmup_fraction), shares))
    return shares_from(floor, found)


EXIT_RULE = ExitRule(
    name="hyperband",
    summary="Brackets of synchronous halving that begin at different rungs.",
    settings=RungSettings,
    build=lambda settings, common: (
        HyperbandRule(
            first_share=common.warmup_fraction,
            reduction_factor=settings.reduction_factor,
            risk=common.risk,
            tolerance=common.tolerance,
            least_steps=common.compare_after_steps,
        ),
    ),
    milestones=_milestones,
    reasons=(RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING),
)
