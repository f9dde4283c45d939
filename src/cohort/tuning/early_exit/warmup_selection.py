"""Warm-up selection: all trials warm up, the best share by validation loss goes on, in two rounds (ALTO 5.2)."""

from __future__ import annotations

from fractions import Fraction

from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Reason
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.early_exit.rule import RUNG_REACHED
from cohort.tuning.shares import exact_fraction

__all__ = ["WARMED_UP", "WarmupSelectionRule"]

WARMED_UP = Reason("warmed up", sentence="The trial has done its warm-up and waits for the others.")


class WarmupSelectionRule(BarrierRule):
    """A barrier at the end of warm-up, and a second one later for those that went on.

    The paper selects once and keeps a quarter. In a grid of several batch sizes the large ones have done few steps by
    then and look worse than they end (docs/early-exit-study.md), so we keep more at first and compare once more.
    """

    name = "warmup_selection"

    def __init__(
        self, *, select_fraction: float, reselect_at: float | None = None, reselect_fraction: float = 1.0
    ) -> None:
        """Keep ``select_fraction`` after warm-up; of those, at ``reselect_at`` of the steps, ``reselect_fraction``."""
        super().__init__(share=exact_fraction(select_fraction))
        self._reselect_at = None if reselect_at is None else exact_fraction(reselect_at)
        self._reselect_share = exact_fraction(reselect_fraction)

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the end of warm-up and the second selection, where there is something left to save."""
        # Such a trial finishes at its warm-up's end: it is not ranked, and its result competes as any other.
        if candidate.warmup_steps >= candidate.planned_steps:
            return ()
        first = candidate.warmup_steps
        if self._reselect_at is None:
            return (first,)
        second = candidate.first_evaluation_at_share(self._reselect_at, after=first)
        return (first,) if second is None else (first, second)

    def share_at(self, index: int) -> Fraction:
        return self._share if index == 0 else self._reselect_share

    def reason_to_park(self, index: int) -> Reason:
        return WARMED_UP if index == 0 else RUNG_REACHED
