"""The default rule: ALTO's detectors of divergence and overfitting, and a selection in two rounds (ALTO section 5).

Defaults are ALTO's (section 5, appendix A.2) unless measured otherwise: selection and overfitting differ from the
paper, see docs/decisions/0011-selection-in-two-rounds.md, and divergence, see 0024-a-rise-above-the-noise.md.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from cohort.tuning.early_exit.warmup_selection import WARMED_UP, WarmupSelectionRule
from cohort.tuning.shares import ceil_share, exact_fraction

__all__ = ["EXIT_RULE", "PatternsSettings"]


_OF_RISE = ("rise_margin", "rise_noise", "rise_least_saving")


@dataclass(frozen=True, kw_only=True)
class PatternsSettings(RuleSettings):
    """Thresholds of the detectors and shares of the selections.

    Attributes:
        select_fraction: Share of the warmed-up trials that go on, rounded up. 1.0 makes no selection, neither this one
            nor the second.
        reselect_at: Share of the planned steps at which those that went on are compared once more. Not later than the
            warm-up's end, there is no second selection.
        reselect_fraction: Share of them that goes on then, rounded up. 1.0 makes no second selection.
        select_at_least, reselect_at_least: Fewest trials that the two comparisons leave. Among few trials little can be
            saved, and the one that ends best often ranks low at first.
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
    select_at_least: int = whole(12, "fewest trials that go on after the first comparison")
    reselect_at_least: int = whole(8, "fewest trials that go on after the second comparison")
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
            found |= dict.fromkeys(("reselect_at", "reselect_fraction", *COMPARISON_KEYS), "select_fraction: 1")
        return found

    def second_share(self, floor: Fraction) -> Fraction:
        """Return where trials are compared again if they are not compared before ``floor``, which may be 0."""
        # trials that could not be compared before have to have gone on before they are compared again
        return max(exact_fraction(self.reselect_at), 2 * floor)

    def reselects(self, common: CommonSettings) -> bool:
        is_later = common.warmup_fraction < self.reselect_at < 1
        return is_later and max(self.select_fraction, self.reselect_fraction) < 1


def _build(settings: PatternsSettings, common: CommonSettings) -> tuple[Rule, ...]:
    detectors: tuple[Rule, ...] = (
        _divergence(settings),
        OverfittingRule(
            patience=settings.overfitting_patience,
            threshold=settings.gap_threshold,
            ignores_new_best=settings.overfitting_ignores_new_best,
        ),
    )
    # Selecting all is no selection: parking every trial only to call it back would cost transfers and decide nothing.
    if settings.select_fraction == 1:
        return detectors
    selection = WarmupSelectionRule(
        select_fraction=settings.select_fraction,
        reselect_at=settings.reselect_at if settings.reselects(common) else None,
        reselect_fraction=settings.reselect_fraction,
        at_least=(settings.select_at_least, settings.reselect_at_least),
        risk=common.risk,
        tolerance=common.tolerance,
        least_steps=common.compare_after_steps,
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


def _shares_that_go_on(settings: PatternsSettings, num_trials: int | None) -> tuple[float, float]:
    """Return the share of the trials that the first comparison leaves, and the share of those that the second does."""
    if not num_trials:
        return settings.select_fraction, settings.reselect_fraction
    first = min(num_trials, max(ceil_share(settings.select_fraction, num_trials), settings.select_at_least))
    second = min(first, max(ceil_share(settings.reselect_fraction, first), settings.reselect_at_least))
    return first / num_trials, second / first


def _kept_share(settings: PatternsSettings, common: CommonSettings, num_trials: int | None) -> float:
    # The detectors' exits depend on the data and are not predicted: they only make a run shorter than announced.
    first, second = _shares_that_go_on(settings, num_trials)
    if not settings.reselects(common):
        return first
    between, after = settings.reselect_at - common.warmup_fraction, 1 - settings.reselect_at
    return first * (between + second * after) / (between + after)


def _kept_at(
    settings: PatternsSettings, common: CommonSettings, share_of_steps: float, num_trials: int | None, floor: Fraction
) -> float:
    # a trial is evaluated before it is compared: at a selection all that reach it are still there
    if share_of_steps <= max(common.warmup_fraction, float(floor)):
        return 1.0
    first, second = _shares_that_go_on(settings, num_trials)
    is_last = settings.reselects(common) and share_of_steps > float(settings.second_share(floor))
    return first * (second if is_last else 1.0)


def _milestones(settings: PatternsSettings, common: CommonSettings, floor: Fraction) -> tuple[Fraction, ...]:
    first = (floor,) if floor else ()
    second = (settings.second_share(floor),) if settings.reselects(common) else ()
    return tuple(share for share in (*first, *second) if share < 1)


EXIT_RULE = ExitRule(
    name="patterns",
    summary="Trials that diverge or overfit, and at two comparisons all but the best.",
    settings=PatternsSettings,
    build=_build,
    reasons=(DIVERGING, OVERFITTING, WARMED_UP, RUNG_REACHED, SELECTED, UNDECIDED, UNDERPERFORMING),
    kept_share=_kept_share,
    kept_at=_kept_at,
    milestones=_milestones,
)
