"""From the settings to the rules that are active, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable

from cohort.tuning.early_exit.asha import AshaRule
from cohort.tuning.early_exit.divergence import DivergenceRule
from cohort.tuning.early_exit.halving import HalvingRule
from cohort.tuning.early_exit.hyperband import HyperbandRule
from cohort.tuning.early_exit.median import MedianRule
from cohort.tuning.early_exit.non_finite import NonFiniteRule
from cohort.tuning.early_exit.overfitting import OverfittingRule
from cohort.tuning.early_exit.patience import PatienceRule
from cohort.tuning.early_exit.rule import Rule
from cohort.tuning.early_exit.settings import EarlyExitSettings, RuleName
from cohort.tuning.early_exit.warmup_selection import WarmupSelectionRule

__all__ = ["build_rules"]


def build_rules(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    """Return fresh rules for one study. Non-finite comes first and is always there, also under ``none``."""
    return (NonFiniteRule(), *_BUILDERS[settings.rule](settings))


def _patterns(settings: EarlyExitSettings) -> tuple[Rule, ...]:
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
        reselect_at=settings.reselect_at if settings.reselects else None,
        reselect_fraction=settings.reselect_fraction,
    )
    return (*detectors, selection)


def _patience(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    return (PatienceRule(patience=settings.patience, min_improvement=settings.min_improvement),)


def _halving(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    return (HalvingRule(first_share=settings.warmup_fraction, reduction_factor=settings.reduction_factor),)


def _asha(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    return (AshaRule(first_share=settings.warmup_fraction, reduction_factor=settings.reduction_factor),)


def _hyperband(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    return (HyperbandRule(first_share=settings.warmup_fraction, reduction_factor=settings.reduction_factor),)


def _median(settings: EarlyExitSettings) -> tuple[Rule, ...]:
    return (MedianRule(startup_trials=settings.startup_trials),)


def _none(settings: EarlyExitSettings) -> tuple[Rule, ...]:  # noqa: ARG001
    return ()


_BUILDERS: dict[RuleName, Callable[[EarlyExitSettings], tuple[Rule, ...]]] = {
    RuleName.PATTERNS: _patterns,
    RuleName.PATIENCE: _patience,
    RuleName.HALVING: _halving,
    RuleName.ASHA: _asha,
    RuleName.HYPERBAND: _hyperband,
    RuleName.MEDIAN: _median,
    RuleName.NONE: _none,
}
