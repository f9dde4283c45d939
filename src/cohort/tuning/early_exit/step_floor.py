"""The share of training before which trials are not compared, whatever a rule's own shares are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.rungs import shares_from

__all__ = ["StepFloor", "share_of_steps"]


def share_of_steps(least_steps: int, *, fewest: int) -> Fraction:
    """Return the share at which a training of ``fewest`` steps has done ``least_steps`` of them, 1 at most."""
    # one step is no floor: every comparison comes after it
    return min(Fraction(1), Fraction(least_steps if least_steps > 1 else 0, fewest))


class StepFloor:
    """Keeps comparisons away from the first steps: after a few of them trials differ by chance and learning rate.

    The floor is a share, common to all trials: those of a large batch size have the fewest steps, and comparing each
    after its own ``least_steps`` would set a tenth of one training against a half of another. It is fixed when it is
    first asked for, by the trials known then.
    """

    def __init__(self, least_steps: int) -> None:
        self._least_steps = least_steps
        self._fewest: int | None = None
        self._share: Fraction | None = None

    def add(self, candidate: Candidate) -> None:
        """Learn of a trial."""
        fewest = self._fewest
        self._fewest = candidate.planned_steps if fewest is None else min(fewest, candidate.planned_steps)

    @property
    def share(self) -> Fraction:
        """The share at which the shortest trial has done the least steps; 1 where that is its end, 0 without trials."""
        if self._share is None:
            if self._fewest is None:
                return Fraction(0)
            self._share = share_of_steps(self._least_steps, fewest=self._fewest)
        return self._share

    def lifted(self, shares: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """Return ``shares`` without those below the floor, which come together there."""
        return shares_from(self.share, shares)
