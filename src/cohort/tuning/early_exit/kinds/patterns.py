"""The default rule: ALTO's detectors of divergence and overfitting, and a selection in three rounds (ALTO section 5).

Defaults are ALTO's (section 5, appendix A.2) unless measured otherwise: selection and overfitting differ from the
paper, see docs/decisions/0011-selection-in-two-rounds.md, and divergence, see 0024-a-rise-above-the-noise.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.setting_fields import choice, flag, number, share, whole
from cohort.tuning.early_exit.divergence import DIVERGING, DivergenceRule, RiseRule
from cohort.tuning.early_exit.overfitting import OVERFITTING, OverfittingRule
from cohort.tuning.early_exit.rule import (
    COMPARISON_KEYS,
    RUNG_REACHED,
    SELECTED,
    UNDECIDED,
    UNDERPERFORMING,
    CommonSettings,
    ExitRule,
    Rule,
    RuleSettings,
)
from cohort.tuning.early_exit.warmup_selection import (
    WARMED_UP,
    Selection,
    WarmupSelectionRule,
    floored_shares,
    has_choice,
)
from cohort.tuning.share_counts import exact_fraction

__all__ = ["EXIT_RULE", "PatternsSettings"]


_OF_RISE = ("rise_margin", "rise_noise", "rise_least_saving")
_OF_SECOND = ("reselect_at", "reselect_fraction")
_OF_THIRD = ("finish_at", "finish_noise")


@dataclass(frozen=True, kw_only=True)
class PatternsSettings(RuleSettings):
    """Thresholds of the detectors and shares of the selections.

    Attributes:
        select_fraction: Share of the warmed-up trials that go on, rounded up. 1.0 makes no selection, neither this one
            nor a later one.
        reselect_at: Share of the planned steps at which those that went on are compared once more. Not later than the
            warm-up's end, there is no second selection and no third.
        reselect_fraction: Share of them that goes on then, rounded up. 1.0 makes no second selection and no third.
        finish_at: Share of the planned steps at which those that are left are compared a last time. Not later than
            ``reselect_at``, there is no third selection.
        finish_fraction: Share of them that trains to the end, rounded up. 1.0 makes no third selection. It ends a trial
            only if that also ranks too low by where its curve leads: going on as since the comparison before.
        finish_noise: And only if it stands above the best by more than this multiple of the noise of either curve. A
            metric that is compared has no such noise.
        select_at_least, reselect_at_least, finish_at_least: Fewest trials that the comparisons leave. Among few trials
            little can be saved, and the one that ends best often ranks low at first.
        divergence: How to detect it: by the rise of both losses above their own lowest points, or by ``slopes``,
            as the paper does. The next three keys belong to ``rise``, ``window`` and ``slope_threshold`` to ``slopes``.
        rise_margin: Share of its lowest point by which a loss has to stand above it.
        rise_noise: The rise has to exceed this multiple of the noise of the evaluations so far.
        rise_least_saving: Share of the steps that has to be left for a stop.
        window: Points the slopes are fitted on (w).
        divergence_patience: Consecutive evaluations with both losses rising (p_div).
        slope_threshold: A slope counts as rising from here, in nats per evaluation (tau_slope).
        overfitting_patience: Consecutive evaluations with too large a gap (p_ovf).
        gap_threshold: Largest tolerated (validation - train) / train (tau_gap).
        overfitting_ignores_new_best: Whether an evaluation that is the trial's best so far never counts as
            overfitting, however large the gap. The paper's rule is False.
    """

    select_fraction: float = share(0.4, "share of the warmed-up trials that go on")
    reselect_at: float = share(0.2, "share of the steps at which those are compared again")
    reselect_fraction: float = share(0.375, "share of them that continues then; 1 compares only once")
    finish_at: float = share(0.65, "share of the steps at which those are compared a last time")
    finish_fraction: float = share(0.66, "share of them that trains to the end; 1 compares only twice")
    finish_noise: float = number(3.0, "times its evaluations' noise that a trial that ends then is above the best")
    select_at_least: int = whole(12, "fewest trials that go on after the first comparison")
    reselect_at_least: int = whole(8, "fewest trials that go on after the second comparison")
    finish_at_least: int = whole(6, "fewest trials that go on after the third comparison")
    divergence: str = choice(
        "rise", "diverging: far above its lowest losses, or by slopes (ALTO)", options=("rise", "slopes")
    )
    rise_margin: float = number(0.1, "rise: share of the lowest loss to exceed")
    rise_noise: float = number(3.0, "rise: times the evaluations' noise to exceed")
    rise_least_saving: float = number(0.1, "rise: share of the steps that a stop has to save", below=1)
    window: int = whole(2, "slopes: evaluations they are fitted on", minimum=2)
    divergence_patience: int = whole(2, "evaluations in a row with both losses rising")
    slope_threshold: float = number(0.001, "slopes: nats per evaluation from which a loss counts as rising")
    overfitting_patience: int = whole(4, "evaluations in a row with too large a gap")
    gap_threshold: float = number(0.3, "tolerated (validation - train) / train")
    overfitting_ignores_new_best: bool = flag(True, "a new best validation loss is never overfitting")

    def unread(self) -> Mapping[str, str]:
        other = ("window", "slope_threshold") if self.divergence == "rise" else _OF_RISE
        found = dict.fromkeys(other, f"divergence: {self.divergence}")
        # all go on, and nothing is compared
        if self.select_fraction == 1:
            keys = (*_OF_SECOND, *_OF_THIRD, "finish_fraction", *COMPARISON_KEYS)
            found |= dict.fromkeys(keys, "select_fraction: 1")
        elif self.reselect_fraction == 1:
            found |= dict.fromkeys((*_OF_THIRD, "finish_fraction"), "reselect_fraction: 1")
        elif self.finish_fraction == 1:
            found |= dict.fromkeys(_OF_THIRD, "finish_fraction: 1")
        return found

    def selections(self, common: CommonSettings) -> tuple[Selection, ...]:
        """Return the comparisons of a rule with these settings, in their order; those that decide nothing are none."""
        rounds = (
            (common.warmup_fraction, self.select_fraction, self.select_at_least, None),
            (self.reselect_at, self.reselect_fraction, self.reselect_at_least, None),
            (self.finish_at, self.finish_fraction, self.finish_at_least, self.finish_noise),
        )
        found: list[Selection] = []
        for at, fraction, at_least, noise_factor in rounds:
            is_later = not found or found[-1].at < exact_fraction(at) < 1
            # Selecting all is no selection: parking every trial only to call it back decides nothing.
            if fraction == 1 or not is_later:
                break
            selection = Selection(
                at=exact_fraction(at),
                fraction=exact_fraction(fraction),
                at_least=at_least,
                noise_factor=noise_factor,
            )
            found.append(selection)
        return tuple(found)


def _build(settings: PatternsSettings, common: CommonSettings) -> tuple[Rule, ...]:
    detectors: tuple[Rule, ...] = (
        _divergence(settings),
        OverfittingRule(
            patience=settings.overfitting_patience,
            threshold=settings.gap_threshold,
            ignores_new_best=settings.overfitting_ignores_new_best,
        ),
    )
    selections = settings.selections(common)
    if not selections:
        return detectors
    selection = WarmupSelectionRule(
        selections, risk=common.risk, tolerance=common.tolerance, least_steps=common.compare_after_steps
    )
    return (*detectors, selection)


def _divergence(settings: PatternsSettings) -> Rule:
    if settings.divergence == "slopes":
        return DivergenceRule(
            window=settings.window, patience=settings.divergence_patience, threshold=settings.slope_threshold
        )
    return RiseRule(
        patience=settings.divergence_patience,
        margin=settings.rise_margin,
        noise_factor=settings.rise_noise,
        least_saving=settings.rise_least_saving,
    )


def _stretches(
    settings: PatternsSettings, common: CommonSettings, num_trials: int | None, floor: Fraction
) -> Iterator[tuple[Fraction, float]]:
    """Yield each share at which trials are compared, and the share of all trials that goes on from there."""
    left, share_left = num_trials, 1.0
    selections = settings.selections(common)
    for index, at in enumerate(floored_shares(selections, floor)):
        selection = selections[index]
        if at >= 1 or (num_trials and not has_choice(selections, index, num_trials)):
            return
        # of many trials every share is a number of trials
        share_left = share_left * float(selection.fraction)
        if num_trials and left:
            left = min(left, selection.num_kept(left))
            share_left = left / num_trials
        yield at, share_left


def _kept_share(settings: PatternsSettings, common: CommonSettings, num_trials: int | None) -> float:
    # The detectors' exits depend on the data and are not predicted: they only make a run shorter than announced.
    start = exact_fraction(common.warmup_fraction)
    found = [*_stretches(settings, common, num_trials, Fraction(0))]
    if not found or start >= 1:
        return 1.0
    ends = [*(at for at, _ in found[1:]), Fraction(1)]
    work = sum(share_left * float(end - at) for (at, share_left), end in zip(found, ends, strict=True))
    return work / float(1 - start)


def _kept_at(
    settings: PatternsSettings, common: CommonSettings, share_of_steps: float, num_trials: int | None, floor: Fraction
) -> float:
    # a trial is evaluated before it is compared: at a selection all that reach it are still there
    found = 1.0
    for at, share_left in _stretches(settings, common, num_trials, floor):
        if share_of_steps > float(at):
            found = share_left
    return found


def _milestones(settings: PatternsSettings, common: CommonSettings, floor: Fraction) -> tuple[Fraction, ...]:
    shares = [at for at, _ in _stretches(settings, common, None, floor)]
    # the warm-up's end is evaluated whether it is one of them or not
    return tuple(shares if floor else shares[1:])


EXIT_RULE = ExitRule(
    name="patterns",
    summary="Trials that diverge or overfit, and at three comparisons all but the best.",
    settings=PatternsSettings,
    build=_build,
    reasons=(DIVERGING, OVERFITTING, WARMED_UP, RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING),
    kept_share=_kept_share,
    kept_at=_kept_at,
    milestones=_milestones,
)
