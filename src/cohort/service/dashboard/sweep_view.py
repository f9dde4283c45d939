"""One run as its page shows it: where it stands, every trial, and which trial was in which slot when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cohort.report.curve_settings import ema_weight, loss_unit
from cohort.report.drawings.hyperparameter_effects import varied_parameters
from cohort.report.followed_parameters import followed_parameters
from cohort.report.labels import model_label
from cohort.report.outcomes import Outcome, outcome_of
from cohort.runs.facts import RunState
from cohort.runs.records import ResidencyRecord, TrialRecord
from cohort.runs.results.results import RankedTrial
from cohort.runs.results.verdicts import verdicts
from cohort.runs.searched_parameters import searched_ranges
from cohort.runs.status import RunStatus
from cohort.service.dashboard.plain_json import plain, rounded
from cohort.tuning.decisions import Reason
from cohort.tuning.interventions import can_be_resumed
from cohort.tuning.trial_status import TrialStatus

__all__ = ["header_view", "is_over", "outcome_views", "stay_views", "trial_view"]


def is_over(status: RunStatus) -> bool:
    """Return whether a run has its result, after which no trial is changed or added."""
    facts = status.results.facts
    return facts.state is RunState.DONE or facts.finals is not None


def header_view(status: RunStatus) -> dict[str, Any]:
    """Return what the page shows above the trials, in units that it names: seconds, tokens, shares."""
    results, facts = status.results, status.results.facts
    counts = Counter({state.value: count for state, count in status.counts.items()})
    if status.state != "running":
        # as the rows say it: no process trains them
        counts[TrialStatus.PARKED.value] += counts.pop(TrialStatus.RUNNING.value, 0)
    best, compute = results.best, results.compute
    head = {
        "title": facts.task_name or "LoRA sweep",
        "model": model_label(facts.places.base_model or ""),
        "state": status.state,
        "holder": status.holder,
        "missing": list(status.missing),
        "metric": {"name": results.metric.name, "label": results.metric_label, "maximize": results.metric.maximize},
        "base_value": results.base_value,
        "default_value": results.default_value,
        "best": None if best is None else {"trial": best.trial_id, "value": best.best_value, "step": best.best_step},
        # rows of the final comparison, which decides the places of the best few
        "final_rows": next((entry.final_rows for entry in results.ranked if entry.final_value is not None), None),
        "verdicts": list(verdicts(results)),
        "seconds": results.run_seconds,
        "seconds_left": status.seconds_left,
        "cost_tokens_left": status.cost_tokens_left,
        "num_devices": status.num_devices,
        "tokens_per_second": status.tokens_per_second,
        "counts": dict(counts),
        "is_over": is_over(status),
        "num_slots": facts.sizes.num_slots,
        "share_done": compute.trained_steps / compute.planned_steps if compute.planned_steps else None,
        "cost_tokens": compute.cost_tokens,
        "planned_tokens": compute.planned_tokens,
        "full_runs": compute.num_full_runs,
        "saved_tokens": _saved_tokens([entry.trial for entry in results.ranked]),
        "activities": {activity.value: seconds for activity, seconds in facts.seconds.items()},
        "axes": _axes(status),
        "ema_weight": ema_weight(facts),
        "loss_unit": loss_unit(facts),
        "device": facts.machine.device,
        "search_ended": facts.search_ended,
        "ranks": [
            {"rank": rank.rank, "busy": rank.busy_share, "tokens_per_second": rank.tokens_per_second}
            for rank in status.ranks
        ],
    }
    return dict(plain(head))


def _saved_tokens(trials: Sequence[TrialRecord]) -> float:
    """Return the tokens that trials which a rule or a person stopped will not be trained on, as planned for them."""
    return sum(
        trial.planned_tokens * (1 - trial.steps_done / trial.planned_steps)
        for trial in trials
        if trial.planned_tokens is not None and trial.status in (TrialStatus.STOPPED, TrialStatus.FAILED)
    )


def _axes(status: RunStatus) -> list[dict[str, Any]]:
    """Return the hyperparameters that differ between trials, and whether they are searched in the logarithm."""
    facts = status.results.facts
    trials = [entry.trial for entry in status.trials]
    ranges = searched_ranges(facts)
    # one that is a multiple of another says nothing of its own
    names = varied_parameters(trials, followed=followed_parameters(facts))
    return [{"name": name, "log": ranges.get(name, False)} for name in names]


def trial_view(entry: RankedTrial, *, is_live: bool, is_over: bool) -> dict[str, Any]:
    """Return a row of the table of trials.

    Args:
        is_live: Whether a process trains the run; without one, what was resident is paused.
        is_over: Whether the run has its result, after which nothing is changed.
    """
    trial = entry.trial
    if trial.status is TrialStatus.RUNNING and not is_live:
        trial = replace(trial, status=TrialStatus.PARKED)
    is_open = not trial.status.is_final
    row = {
        "id": trial.trial_id,
        "place": entry.rank if trial.best_value is not None else None,
        "state": "paused" if trial.status is TrialStatus.PARKED and not trial.is_protected else trial.state,
        "status": trial.status.value,
        "outcome": outcome_of(trial).name,
        "kept": trial.is_protected,
        "parameters": trial.parameters,
        "steps": trial.steps_done,
        "planned": trial.planned_steps,
        "tokens": trial.tokens,
        "loss": rounded(trial.last_loss),
        "best": rounded(trial.best_value),
        "best_loss": rounded(trial.best_loss),
        "best_step": trial.best_step,
        "final": None if entry.final_value is None else rounded(entry.final_value.value),
        "message": trial.message,
        # what a person may ask for now; the run itself checks again
        "can": []
        if is_over
        else [
            *(["stop"] if is_open else []),
            *(["keep"] if is_open and not trial.is_protected else []),
            *(["resume"] if trial.status is TrialStatus.STOPPED and can_be_resumed(Reason(trial.reason)) else []),
            "clone",
        ],
    }
    return dict(plain(row))


def outcome_views(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return how each outcome among ``trials`` looks: the report's label, shape and colours on light and dark."""
    outcomes: dict[str, Outcome] = {}
    for trial in trials:
        found = outcome_of(trial)
        outcomes.setdefault(found.name, found)
    return {
        name: {"label": outcome.label, "shape": outcome.shape, "colours": list(outcome.colours)}
        for name, outcome in outcomes.items()
    }


def stay_views(stays: Sequence[ResidencyRecord]) -> list[list[float | None]]:
    """Return each stay as slot, trial, begin and end in seconds of run time; the end is null while it lasts."""
    return [[stay.slot, stay.trial_id, rounded(stay.start_seconds), rounded(stay.stop_seconds)] for stay in stays]
