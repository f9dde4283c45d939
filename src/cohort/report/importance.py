"""How much each hyperparameter matters for the result, as bars."""

from __future__ import annotations

import math
from typing import Any

from cohort.core.units import counted
from cohort.report.drawings.hyperparameter_effects import varied_parameters
from cohort.report.followed_parameters import followed_parameters
from cohort.report.labels import percent_label
from cohort.runs.results.results import RunResults
from cohort.runs.searched_parameters import searched_ranges
from cohort.tuning.samplers.importance import LEAST_TRIALS, hyperparameter_importances, is_importance_available

__all__ = ["importance_bars"]


def importance_bars(results: RunResults) -> dict[str, Any]:
    """Return a bar for each hyperparameter, the most important first, and one line about them or why there is none."""
    measured = [
        (entry.trial, results.metric.cost(entry.trial.best_value))
        for entry in results.ranked
        if entry.trial.best_value is not None and math.isfinite(entry.trial.best_value)
    ]
    names = [
        name
        for name in varied_parameters([trial for trial, _ in measured], followed=followed_parameters(results.facts))
        # conditional ones have no value in some trials
        if all(name in trial.parameters for trial, _ in measured)
    ]
    why_not = ""
    if len(names) < 2:
        why_not = "Importance compares hyperparameters, and fewer than two vary."
    elif len(measured) < LEAST_TRIALS:
        why_not = (
            f"Importance needs {LEAST_TRIALS} evaluated trials; this run has {counted(len(measured), 'such trial')}."
        )
    elif not is_importance_available():
        why_not = "Importance needs optuna (pip install optuna)."
    if why_not:
        return {"bars": (), "note": why_not}
    shares = hyperparameter_importances(
        [{name: trial.parameters[name] for name in names} for trial, _ in measured],
        [cost for _, cost in measured],
        ranges=searched_ranges(results.facts),
    )
    most = max(shares.values()) or 1.0
    bars = [
        {"label": name, "value": percent_label(share), "percent": round(100 * share / most, 1), "is_best": place == 0}
        for place, (name, share) in enumerate(shares.items())
    ]
    note = (
        f"What decides whether a trial is among the best tenth (Optuna's PED-ANOVA, {counted(len(measured), 'trial')}, "
        "those stopped early at their best so far)."
    )
    return {"bars": bars, "note": note}
