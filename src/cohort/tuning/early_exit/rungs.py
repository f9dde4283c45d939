"""Rungs of successive halving: shares of the planned steps, each the same factor after the one before.

Resources are shares of each trial's own training, not steps: a trial of batch size 1 has eight times the steps of one
of batch size 8 on the same data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.setting_fields import whole
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.rule import CommonSettings, RuleSettings
from cohort.tuning.share_counts import exact_fraction

__all__ = ["RungSettings", "rung_milestones", "rung_shares", "rung_steps_at", "shares_from"]


@dataclass(frozen=True, kw_only=True)
class RungSettings(RuleSettings):
    """Settings of all rules with rungs; the first rung is where warm-up ends.

    Attributes:
        reduction_factor: One of this many trials passes a rung, and rungs are this factor apart (eta).
    """

    reduction_factor: int = whole(3, "one of this many trials passes a rung", minimum=2)


def rung_shares(first: float, *, reduction_factor: int) -> tuple[Fraction, ...]:
    """Return ``first * reduction_factor**k`` for all k that stay below the whole training."""
    shares = []
    share = exact_fraction(first)
    while share < 1:
        shares.append(share)
        share *= reduction_factor
    return tuple(shares)


def shares_from(floor: Fraction, shares: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return ``shares`` without those below ``floor``, which come together there."""
    above = tuple(share for share in shares if share >= floor)
    return above if len(above) == len(shares) or above[:1] == (floor,) else (floor, *above)


def rung_milestones(settings: RungSettings, common: CommonSettings, floor: Fraction) -> tuple[Fraction, ...]:
    """Return the shares at which halving compares trials (:attr:`ExitRule.milestones`)."""
    return shares_from(floor, rung_shares(common.warmup_fraction, reduction_factor=settings.reduction_factor))


def rung_steps_at(candidate: Candidate, shares: tuple[Fraction, ...]) -> tuple[int, ...]:
    """Return the evaluation steps, increasing, at which a trial stands at its rungs.

    A rung is met at the first evaluation at or past its share, if that is before the last step.
    """
    steps: list[int] = []
    # `after` keeps the rungs of a short trial apart: two that fall on one evaluation are met one after the other.
    for share in shares:
        step = candidate.first_evaluation_at_share(share, after=steps[-1] if steps else 0)
        if step is None:
            break
        steps.append(step)
    return tuple(steps)
