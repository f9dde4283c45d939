"""The outcome of a run: trials ranked, the best one, what it cost; as records, CSV, JSON lines and JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.durable_files import atomic_file
from cohort.core.events import Evaluated, StepDone
from cohort.runs.compute_saved import ComputeSaved, compute_saved
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader
from cohort.runs.records import JsonValue, LoggedEvent, TrialRecord, TrialStatus
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

__all__ = [
    "RankedTrial",
    "RunResults",
    "best_first",
    "read_results",
    "results_json",
    "write_metrics_jsonl",
    "write_results_csv",
]


@dataclass(frozen=True, kw_only=True)
class RankedTrial:
    """A trial with its place. ``why`` says in one line what gave it that place."""

    rank: int
    trial: TrialRecord
    why: str


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """All that a run came to.

    Attributes:
        ranked: Every trial, best first; trials without a finite evaluation last.
        best: The run's result: what the run recorded as its best, else the first of ``ranked`` that has a value.
        base_value: The task's metric of the model without an adapter; None where it was not measured.
        default_value: The same for the default hyperparameters: measured apart (fact ``default_metrics``), else the
            best value of ``default_trial``, which a rule may have stopped early.
        default_trial: The trial with the default hyperparameters, where ``default_value`` is its own.
        facts: What the record says of the run as a whole.
    """

    metric: ObjectiveMetric
    ranked: tuple[RankedTrial, ...]
    best: TrialRecord | None
    base_value: float | None
    default_value: float | None
    default_trial: TrialRecord | None
    compute: ComputeSaved
    run_seconds: float
    facts: RunFacts

    @property
    def worst(self) -> TrialRecord | None:
        """The last ranked trial that has a value."""
        return next((entry.trial for entry in reversed(self.ranked) if entry.trial.best_value is not None), None)

    @property
    def search_ended(self) -> str | None:
        """What ended the search before all trials were proposed, in words; None where nothing did."""
        return self.facts.search_ended

    @property
    def metric_label(self) -> str:
        """The metric in words."""
        return self.metric.label


def best_first(trials: Iterable[TrialRecord], *, metric: ObjectiveMetric) -> list[TrialRecord]:
    """Return ``trials`` by their best checkpoint, those without one last."""

    def order(trial: TrialRecord) -> tuple[float, ...]:
        if trial.best_value is None or trial.best_loss is None or trial.best_step is None:
            return (math.inf, trial.trial_id)
        return metric.order(
            trial.best_value, validation_loss=trial.best_loss, step=trial.best_step, trial_id=trial.trial_id
        )

    return sorted(trials, key=order)


def _why(trial: TrialRecord, *, metric: ObjectiveMetric) -> str:
    ended = {
        TrialStatus.COMPLETED: f"all {trial.steps_done} steps",
        TrialStatus.STOPPED: f"stopped at step {trial.steps_done}: {trial.reason}",
        TrialStatus.FAILED: f"failed at step {trial.steps_done}: {trial.message or 'no message'}",
        TrialStatus.PARKED: f"parked at step {trial.steps_done}",
        TrialStatus.RUNNING: f"running, step {trial.steps_done}",
        TrialStatus.WAITING: "not begun",
    }[trial.status]
    if trial.best_value is None:
        return f"no finite {metric.label}; {ended}"
    # a share says little by itself: trials of equal score differ in the loss they reach it with
    loss = "" if metric.name == LOSS.name or trial.best_loss is None else f" (validation loss {trial.best_loss:.4g})"
    return f"{metric.label} {trial.best_value:.4g}{loss} at step {trial.best_step}; {ended}"


def read_results(reader: RunReader) -> RunResults:
    """Read the outcome so far; works at any moment of a run."""
    with reader.snapshot():
        facts, trials, run_seconds = reader.facts(), reader.trials(), reader.run_seconds()
    metric = facts.objective_metric
    by_id = {trial.trial_id: trial for trial in trials}
    ordered = best_first(trials, metric=metric)
    best = None if facts.best_trial_id is None else by_id.get(facts.best_trial_id)
    if best is None and ordered and ordered[0].best_value is not None:
        best = ordered[0]
    default, default_trial = (facts.default_metrics or {}).get(metric.name), None
    if default is None and facts.task.default_trial_id is not None:
        default_trial = by_id.get(facts.task.default_trial_id)
        default = None if default_trial is None else default_trial.best_value
    return RunResults(
        metric=metric,
        ranked=tuple(
            RankedTrial(rank=rank, trial=trial, why=_why(trial, metric=metric))
            for rank, trial in enumerate(ordered, start=1)
        ),
        best=best,
        base_value=(facts.base_metrics or {}).get(metric.name),
        default_value=default,
        default_trial=default_trial,
        compute=compute_saved(trials),
        run_seconds=run_seconds,
        facts=facts,
    )


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """Names in the order they first occur."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def write_results_csv(path: Path, *, results: RunResults) -> None:
    """Write the trials table, best first. A number that does not exist is an empty field.

    Raises:
        StorageFullError: the disk is full; the file is as it was.
    """
    trials = [entry.trial for entry in results.ranked]
    parameters = _names(trial.parameters for trial in trials)
    metrics = _names(trial.best_metrics for trial in trials)
    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            [
                *("rank", "trial", "status", "reason", *parameters, "seed", "planned_steps", "steps", "tokens"),
                *("eval_tokens", "best_step", "eval_loss", *(f"eval_{name}" for name in metrics)),
                *("last_loss", "message"),
            ]
        )
        for entry in results.ranked:
            trial = entry.trial
            writer.writerow(
                [entry.rank, trial.trial_id, trial.status.value, trial.reason]
                + [_cell(trial.parameters.get(name)) for name in parameters]
                + [trial.seed, trial.planned_steps, trial.steps_done, trial.tokens, trial.evaluation_tokens]
                + [_cell(trial.best_step), _cell(trial.best_loss)]
                + [_cell(trial.best_metrics.get(name)) for name in metrics]
                + [_cell(trial.last_loss), trial.message]
            )


def _cell(value: JsonValue) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value


def _log_history(reader: RunReader) -> Iterator[dict[str, Any]]:
    """The log in the words of transformers' ``log_history`` and TRL (``num_tokens`` counts up), plus ``trial``."""
    seen: dict[int, int] = {}
    for entry in reader.log.entries():
        if not isinstance(entry, LoggedEvent):
            continue
        event = entry.event
        line: dict[str, Any] = {"trial": event.trial_id, "step": event.step, "seconds": round(entry.seconds, 3)}
        if isinstance(event, StepDone):
            seen[event.trial_id] = seen.get(event.trial_id, 0) + event.num_tokens
            line |= {"loss": event.loss, "grad_norm": event.grad_norm, "learning_rate": event.learning_rate}
            line["num_tokens"] = seen[event.trial_id]
        elif isinstance(event, Evaluated):
            line |= {"eval_loss": event.validation_loss}
            line |= {f"eval_{name}": value for name, value in event.metrics.items()}
            line["eval_num_tokens"] = event.num_tokens
        else:
            line["error"] = event.message
        yield line


def write_metrics_jsonl(path: Path, *, reader: RunReader) -> None:
    """Write every step and evaluation in the order it happened; NaN and Inf, which JSON lacks, as null.

    Raises:
        StorageFullError: the disk is full; the file is as it was.
    """
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as stream:
        for line in _log_history(reader):
            stream.write(json.dumps(_finite(line), allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """``value`` with None for every NaN and Inf in it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _trial_json(trial: TrialRecord) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "status": trial.status.value,
        "reason": trial.reason,
        "message": trial.message,
        "parameters": dict(trial.parameters),
        "seed": trial.seed,
        "steps": trial.steps_done,
        "planned_steps": trial.planned_steps,
        "tokens": trial.tokens,
        "eval_tokens": trial.evaluation_tokens,
        "best_step": trial.best_step,
        "best_value": trial.best_value,
        "eval_loss": trial.best_loss,
        "metrics": dict(trial.best_metrics),
    }


def results_json(results: RunResults) -> dict[str, Any]:
    """Return what ``--json`` prints: plain values, strict JSON."""
    compute = results.compute
    whole: dict[str, Any] = {
        "metric": {"name": results.metric.name, "maximize": results.metric.maximize},
        "best": None if results.best is None else _trial_json(results.best),
        "base_value": results.base_value,
        "default_value": results.default_value,
        "seconds": results.run_seconds,
        "search_ended": results.search_ended,
        "compute": {
            "share_of_full_grid": compute.share_of_full_grid,
            "full_runs": compute.num_full_runs,
            "trained_tokens": compute.trained_tokens,
            "eval_tokens": compute.evaluation_tokens,
            "planned_tokens": compute.planned_tokens,
            "trained_samples": compute.trained_samples,
            "planned_samples": compute.planned_samples,
        },
        "trials": [{"rank": entry.rank, "why": entry.why, **_trial_json(entry.trial)} for entry in results.ranked],
    }
    cleaned: dict[str, Any] = _finite(whole)
    return cleaned
