"""Warm-up selection: all trials warm up, the best share by validation loss goes on, in two rounds (ALTO 5.2)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Reason
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.early_exit.rule import RUNG_REACHED
from cohort.tuning.shares import exact_fraction

__all__ = ["WARMED_UP", "WarmupSelectionRule"]

WARMED_UP = Reason("warmed up", sentence="The trial has done its warm-up and waits for the others.")


class WarmupSelectionRule(BarrierRule):
    """A barrier at the end of warm-up, a second one later for those that went on, and further ones for the undecided.

    The paper selects once and keeps a quarter. In a grid of several batch sizes the large ones have done few steps by
    then and look worse than they end (docs/early-exit-study.md), so we keep more at first and compare once more.
    """

    name = "warmup_selection"

    def __init__(
        self,
        *,
        select_fraction: float,
        reselect_at: float | None = None,
        reselect_fraction: float = 1.0,
        at_least: tuple[int, int] = (1, 1),
        risk: float = 1.0,
        tolerance: float = 0.0,
        least_steps: int = 1,
    ) -> None:
        """Keep ``select_fraction`` after warm-up; of those, at ``reselect_at`` of the steps, ``reselect_fraction``.

        Args:
            at_least: Fewest trials that each of the two selections keeps.
            risk, tolerance, least_steps: As in :class:`~cohort.tuning.early_exit.rule.CommonSettings`.
        """
        super().__init__(share=exact_fraction(select_fraction), risk=risk, tolerance=tolerance, least_steps=least_steps)
        self._reselect_at = None if reselect_at is None else exact_fraction(reselect_at)
        self._reselect_share = exact_fraction(reselect_fraction)
        self._at_least = at_least

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the end of warm-up and the second selection, where there is something left to save."""
        # Such a trial finishes at its warm-up's end: it is not ranked, and its result competes as any other.
        if candidate.warmup_steps >= candidate.planned_steps:
            return ()
        floor = self.floor.share
        # a short run may not be evaluated at the warm-up's end, if nothing is compared there
        warmed_up = Fraction(candidate.warmup_steps, candidate.planned_steps)
        first = candidate.first_evaluation_at_share(max(warmed_up, floor))
        if first is None:
            return ()
        if self._reselect_at is None:
            return (first,)
        # trials that could not be compared before have to have gone on before they are compared again
        return (first, *self._later(candidate, max(self._reselect_at, 2 * floor), after=first))

    def _later(self, candidate: Candidate, share: Fraction, *, after: int) -> Iterator[int]:
        """Yield the second selection, and where those that it leaves undecided are compared again."""
        every = share
        while share < 1 and (step := candidate.first_evaluation_at_share(share, after=after)) is not None:
            yield step
            after, share = step, share + every

    def goes_on_to(self, group: int, index: int) -> bool:
        """Return whether the second selection left more than it wanted, if this is a later one."""
        return index <= 1 or self.num_that_went_on(group, index - 1) > self._num_wanted(group)

    def num_kept(self, group: int, index: int, *, num_ranked: int) -> int:
        if index > 1:
            return self._num_wanted(group)
        return max(self._at_least[index], super().num_kept(group, index, num_ranked=num_ranked))

    def _num_wanted(self, group: int) -> int:
        """Return how many trials the second selection keeps whatever the rows say."""
        return self.num_kept(group, 1, num_ranked=self.num_ranked(group, 1))

    def share_at(self, index: int) -> Fraction:
        return self._share if index == 0 else self._reselect_share

    def reason_to_park(self, index: int) -> Reason:
        return WARMED_UP if index == 0 else RUNG_REACHED
