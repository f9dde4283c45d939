"""Where trials of a short training are compared: what the floor in steps makes of a rule's own shares.

After a twentieth of a short training a trial has done a handful of steps. Comparisons then come later
(:class:`~cohort.tuning.early_exit.step_floor.StepFloor`), and an evaluation before the first of them decides nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

from cohort.tuning.early_exit.lookup import EXIT_RULES
from cohort.tuning.early_exit.rule import ExitRule
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.early_exit.step_floor import share_of_steps
from cohort.tuning.share_counts import exact_fraction

__all__ = ["FirstComparison"]


@dataclass(frozen=True, kw_only=True)
class FirstComparison:
    """When a rule first compares the trials of a task, and what follows from that.

    Attributes:
        settings: The rule.
        floor: The share of training before which it compares none; 0 where that is not after the warm-up's end.
    """

    settings: EarlyExitSettings
    floor: Fraction

    @classmethod
    def of(cls, settings: EarlyExitSettings, *, fewest_steps: int) -> FirstComparison:
        """Return it for trials of which the shortest has ``fewest_steps`` planned steps."""
        key = "compare_after_steps"
        floor = share_of_steps(getattr(settings.common, key), fewest=fewest_steps)
        # a rule that compares nothing has no comparison to put off
        compares = key in _rule(settings).comparison_keys and key not in settings.options.unread()
        is_later = compares and floor > exact_fraction(settings.common.warmup_fraction)
        return cls(settings=settings, floor=floor if is_later else Fraction(0))

    @property
    def evaluations_in_warmup(self) -> int:
        """The fewest evaluations up to the warm-up's end that the rule can do with."""
        return 0 if self.floor else 1

    @property
    def milestones(self) -> tuple[Fraction, ...] | None:
        """The later shares at which the rule needs an evaluation, None for all."""
        found = _rule(self.settings).milestones
        return None if found is None else found(self.settings.options, self.settings.common, self.floor)

    @property
    def kept_share(self) -> float:
        """The share of the work after the warm-up that the rule leaves of many trials."""
        milestones = self.milestones
        if not self.floor or not milestones or _rule(self.settings).kept_at is None:
            return self.settings.kept_share()
        start = exact_fraction(self.settings.common.warmup_fraction)
        borders = [start, *milestones, Fraction(1)]
        # between two comparisons no trial is expected to end
        work = sum(self.kept_at(float((a + b) / 2)) * float(b - a) for a, b in itertools.pairwise(borders))
        return work / float(1 - start)

    def kept_at(self, share: float) -> float:
        """Return the share of many trials that is expected to reach ``share`` of their steps."""
        if share <= self.floor:
            return 1.0
        found = _rule(self.settings).kept_at
        if found is None:
            return self.settings.kept_at(share)
        return found(self.settings.options, self.settings.common, share, None, self.floor)


def _rule(settings: EarlyExitSettings) -> ExitRule:
    rule = EXIT_RULES.find(settings.rule)
    assert rule is not None, "settings name a rule that there is"
    return rule
