"""Every threshold of early exit. Defaults are ALTO's (section 5, appendix A.2) unless measured otherwise.

Selection and overfitting differ from the paper: see docs/decisions/0011-selection-in-two-rounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place

__all__ = ["EarlyExitSettings", "RuleName"]


class RuleName(StrEnum):
    """Which trials end early, and by what. A non-finite loss ends a trial under each of them."""

    PATTERNS = "patterns"
    """Divergence, overfitting, and one selection at the end of warm-up (ALTO)."""
    PATIENCE = "patience"
    """Each trial alone: no better validation loss for some evaluations (as transformers' EarlyStoppingCallback)."""
    HALVING = "halving"
    """Synchronous successive halving: all trials meet at each rung."""
    ASHA = "asha"
    """Asynchronous successive halving: judged on arrival against those that came before."""
    HYPERBAND = "hyperband"
    """Brackets of synchronous halving that begin at different rungs."""
    MEDIAN = "median"
    """Worse than the median of the other trials at the same share of training."""
    NONE = "none"
    """All trials train to the end."""


@dataclass(frozen=True, kw_only=True)
class EarlyExitSettings:
    """When trials end early. Each field is a key of ``early_exit`` in the task file.

    Attributes:
        rule: Which rules are active.
        warmup_fraction: Length of warm-up in shares of the planned steps; also the first rung of halving and ASHA, and
            where the median rule begins.
        select_fraction: ``patterns``: share of the warmed-up trials that go on, rounded up. 1.0 makes no selection,
            neither this one nor the second.
        reselect_at: ``patterns``: share of the planned steps at which those that went on are compared once more. Not
            later than the warm-up's end, there is no second selection.
        reselect_fraction: ``patterns``: share of them that goes on then, rounded up. 1.0 makes no second selection.
        window: ``patterns``: points the slopes are fitted on (w), >= 2.
        divergence_patience: ``patterns``: consecutive evaluations with both slopes rising (p_div).
        slope_threshold: ``patterns``: a slope counts as rising from here, in nats per evaluation (tau_slope).
        overfitting_patience: ``patterns``: consecutive evaluations with too large a gap (p_ovf).
        gap_threshold: ``patterns``: largest tolerated (validation - train) / train (tau_gap).
        overfitting_ignores_new_best: ``patterns``: whether an evaluation that is the trial's best so far never counts
            as overfitting, however large the gap. The paper's rule is False.
        ema_weight: Weight of the newest loss in the smoothed training loss (a; ours, the paper gives none).
        patience: ``patience``: evaluations without improvement that end a trial.
        min_improvement: ``patience``: nats by which the loss must fall below the best to count as an improvement.
        reduction_factor: ``halving``, ``asha``, ``hyperband``: one of so many trials passes a rung (eta); rungs are
            this factor apart.
        startup_trials: ``median``: other trials that must have come as far before one is judged.
    """

    rule: RuleName = RuleName.PATTERNS
    warmup_fraction: float = 0.05
    select_fraction: float = 0.5
    reselect_at: float = 0.2
    reselect_fraction: float = 0.3
    window: int = 2
    divergence_patience: int = 2
    slope_threshold: float = 0.001
    overfitting_patience: int = 4
    gap_threshold: float = 0.3
    overfitting_ignores_new_best: bool = True
    ema_weight: float = 0.1
    patience: int = 3
    min_improvement: float = 0.0
    reduction_factor: int = 3
    startup_trials: int = 5

    def __post_init__(self) -> None:
        problems = []
        try:
            object.__setattr__(self, "rule", RuleName(self.rule))
        except ValueError:
            names = ", ".join(name.value for name in RuleName)
            problems.append(_problem("rule", self.rule, allowed=names, hint="Choose one of these rules."))
        for name in ("warmup_fraction", "select_fraction", "reselect_at", "reselect_fraction", "ema_weight"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                problems.append(_problem(name, value, allowed="a share in (0, 1]", hint="Write 0.05 for 5 %."))
        for name in ("slope_threshold", "gap_threshold", "min_improvement"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                problems.append(_problem(name, value, allowed="a finite number >= 0", hint="Set it to 0 or more."))
        least = {
            "window": 2,
            "divergence_patience": 1,
            "overfitting_patience": 1,
            "patience": 1,
            "reduction_factor": 2,
            "startup_trials": 1,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                hint = f"Set it to {smallest} or more."
                problems.append(_problem(name, value, allowed=f"an integer >= {smallest}", hint=hint))
        for name in ("overfitting_ignores_new_best",):
            value = getattr(self, name)
            if not isinstance(value, bool):
                problems.append(_problem(name, value, allowed="true or false", hint="Write true or false."))
        if problems:
            raise InputError(problems)

    @property
    def reselects(self) -> bool:
        """Whether there is a second selection."""
        return self.warmup_fraction < self.reselect_at < 1 and max(self.select_fraction, self.reselect_fraction) < 1

    @property
    def kept_share(self) -> float:
        """Share of the work after warm-up that the selections leave, for predictions of cost and time."""
        if self.rule is not RuleName.PATTERNS:
            return 1.0
        if not self.reselects:
            return self.select_fraction
        between, after = self.reselect_at - self.warmup_fraction, 1 - self.reselect_at
        return self.select_fraction * (between + self.reselect_fraction * after) / (between + after)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _problem(name: str, value: object, *, allowed: str, hint: str) -> Problem:
    return Problem(where=Place(key=("early_exit", name)), found=repr(value), allowed=allowed, hint=hint)
