"""Synchronous successive halving (Jamieson and Talwalkar 2016): at each rung all meet and one of eta goes on."""

from __future__ import annotations

from fractions import Fraction

from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.early_exit.rule import RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING, ExitRule
from cohort.tuning.early_exit.rungs import RungSettings, rung_milestones, rung_shares, rung_steps_at

__all__ = ["EXIT_RULE", "HalvingRule"]


class HalvingRule(BarrierRule):
    """Barriers at ``first_share * reduction_factor**k`` of the planned steps; ceil(n / reduction_factor) pass each."""

    name = "halving"

    def __init__(
        self,
        *,
        first_share: float,
        reduction_factor: int,
        risk: float = 1.0,
        tolerance: float = 0.0,
        least_steps: int = 1,
    ) -> None:
        # A fraction, not a float: 1 / 11 is rounded up in floats, and of 11 trials two would pass instead of one.
        super().__init__(share=Fraction(1, reduction_factor), risk=risk, tolerance=tolerance, least_steps=least_steps)
        self._shares = rung_shares(first_share, reduction_factor=reduction_factor)

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        return rung_steps_at(candidate, self.floor.lifted(self._shares))


EXIT_RULE = ExitRule(
    name="halving",
    summary="Synchronous successive halving: all trials meet at each rung, and the best share continues.",
    settings=RungSettings,
    build=lambda settings, common: (
        HalvingRule(
            first_share=common.warmup_fraction,
            reduction_factor=settings.reduction_factor,
            risk=common.risk,
            tolerance=common.tolerance,
            least_steps=common.compare_after_steps,
        ),
    ),
    milestones=rung_milestones,
    reasons=(RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING),
)
