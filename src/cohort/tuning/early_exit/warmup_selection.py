"""Warm-up selection: all trials warm up, the best share by validation loss goes on (ALTO 5.2, pattern 3)."""

from __future__ import annotations

from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Reason
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.shares import exact_fraction

__all__ = ["WarmupSelectionRule"]


class WarmupSelectionRule(BarrierRule):
    """One barrier at the end of warm-up.

    A trial whose whole training is no longer than its warm-up finishes there: it is not ranked, it has nothing left
    to save, and its result competes as any other.
    """

    name = "warmup_selection"

    def __init__(self, *, select_fraction: float) -> None:
        super().__init__(share=exact_fraction(select_fraction), reason_to_park=Reason.WARMED_UP)

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the end of warm-up."""
        return (candidate.warmup_steps,) if candidate.warmup_steps < candidate.planned_steps else ()
