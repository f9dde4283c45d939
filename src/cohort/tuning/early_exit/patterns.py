"""The default rule: ALTO's detectors of divergence and overfitting, and a selection in two rounds (ALTO section 5).

Defaults are ALTO's (section 5, appendix A.2) unless measured otherwise: selection and overfitting differ from the
paper, see docs/decisions/0011-selection-in-two-rounds.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from cohort.core.setting_fields import flag, number, share, whole
from cohort.tuning.early_exit.divergence import DIVERGING, DivergenceRule
from cohort.tuning.early_exit.overfitting import OVERFITTING, OverfittingRule
from cohort.tuning.early_exit.rule import (
    RUNG_REACHED,
    SELECTED,
    UNDERPERFORMING,
    CommonSettings,
    ExitRule,
    Rule,
    RuleSettings,
)
from cohort.tuning.early_exit.warmup_selection import WARMED_UP, WarmupSelectionRule

__all__ = ["EXIT_RULE", "PatternsSettings"]


@dataclass(frozen=True, kw_only=True)
class PatternsSettings(RuleSettings):
    """Thresholds of the detectors and shares of the selections.

    Attributes:
        select_fraction: Share of the warmed-up trials that go on, rounded up. 1.0 makes no selection, neither this one
            nor the second.
        reselect_at: Share of the planned steps at which those that went on are compared once more. Not later than the
            warm-up's end, there is no second selection.
        reselect_fraction: Share of them that goes on then, rounded up. 1.0 makes no second selection.
        window: Points the slopes are fitted on (w).
        divergence_patience: Consecutive evaluations with both slopes rising (p_div).
        slope_threshold: A slope counts as rising from here, in nats per evaluation (tau_slope).
        overfitting_patience: Consecutive evaluations with too large a gap (p_ovf).
        gap_threshold: Largest tolerated (validation - train) / train (tau_gap).
        overfitting_ignores_new_best: Whether an evaluation that is the trial's best so far never counts as
            overfitting, however large the gap. The paper's rule is False.
    """

    select_fraction: float = share(0.5, "share of the warmed-up trials that go on")
    reselect_at: float = share(0.2, "share of the steps at which those are compared again")
    reselect_fraction: float = share(0.3, "share of them that goes on then; 1 compares only once")
    window: int = whole(2, "evaluations the slopes are fitted on", minimum=2)
    divergence_patience: int = whole(2, "evaluations in a row with both losses rising")
    slope_threshold: float = number(0.001, "nats per evaluation from which a loss counts as rising")
    overfitting_patience: int = whole(4, "evaluations in a row with too large a gap")
    gap_threshold: float = number(0.3, "tolerated (validation - train) / train")
    overfitting_ignores_new_best: bool = flag(True, "a new best validation loss is never overfitting")

    def reselects(self, common: CommonSettings) -> bool:
        is_later = common.warmup_fraction < self.reselect_at < 1
        return is_later and max(self.select_fraction, self.reselect_fraction) < 1


def _build(settings: PatternsSettings, common: CommonSettings) -> tuple[Rule, ...]:
    detectors: tuple[Rule, ...] = (
        DivergenceRule(
            window=settings.window, patience=settings.divergence_patience, threshold=settings.slope_threshold
        ),
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
    )
    return (*detectors, selection)


def _kept_share(settings: PatternsSettings, common: CommonSettings) -> float:
    # The detectors' exits depend on the data and are not predicted: they only make a run shorter than announced.
    if not settings.reselects(common):
        return settings.select_fraction
    between, after = settings.reselect_at - common.warmup_fraction, 1 - settings.reselect_at
    return settings.select_fraction * (between + settings.reselect_fraction * after) / (between + after)


EXIT_RULE = ExitRule(
    name="patterns",
    summary="Trials that diverge or overfit, and at two comparisons all but the best.",
    settings=PatternsSettings,
    build=_build,
    reasons=(DIVERGING, OVERFITTING, WARMED_UP, RUNG_REACHED, SELECTED, UNDERPERFORMING),
    kept_share=_kept_share,
)
