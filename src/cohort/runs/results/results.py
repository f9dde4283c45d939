"""The outcome of a run: its trials ranked, the best one, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cohort.core.statistics.estimates import Estimate
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader, StepsTaken
from cohort.runs.records import TrialRecord
from cohort.runs.results.adapter_size import AdapterSize, adapter_size
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.compute_saved import ComputeSaved, compute_saved
from cohort.runs.results.reference_baseline import chance_of
from cohort.tuning.early_exit.separation import FEWEST_ROWS
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus

__all__ = ["LARGEST_CHANCE", "RankedTrial", "RunResults", "best_first", "read_results"]

LARGEST_CHANCE = 0.025
"""Of being no worse, at which an adapter is called worse: a 95 % interval on one side of 0."""


@dataclass(frozen=True, kw_only=True)
class RankedTrial:
    """A trial with its place among the others: :func:`read_results` makes it for people, at any moment of a run.

    Attributes:
        why: What gave it that place, in one line.
        evaluation_rows: Validation rows of each of its evaluations; None where an old record does not say.
        final: What the comparison at the end measured, on ``final_rows`` rows; None for a trial that was not in it.
        final_value: The task's metric there.
        size: How large its adapter is; None where all trials are plain LoRA.
    """

    rank: int
    trial: TrialRecord
    why: str
    evaluation_rows: int | None = None
    final: Contender | None = None
    final_rows: int | None = None
    final_value: Estimate | None = None
    size: AdapterSize | None = None


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The outcome of a run.

    Attributes:
        ranked: Every trial, best first; trials without a finite evaluation last.
        best: The run's result: what the run recorded as its best, else the first of ``ranked`` that has a value.
        base_value: The task's metric of the model without an adapter; None where it was not measured.
        chance_not_worse: How likely it is, over draws of the evaluation rows, that ``best`` is no worse than the base
            model, or than chance. Known for runs that end without a comparison, where these rows are all there is.
        default_value: The same for the default hyperparameters: recorded at the end of a run whose default trial did
            all its steps, else the best value of ``default_trial``, which a rule may have stopped early.
        default_trial: The trial with the default hyperparameters, where ``default_value`` is its best so far.
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
    chance_not_worse: float | None = None

    @property
    def worst(self) -> TrialRecord | None:
        """The last ranked trial that has a value."""
        return next((entry.trial for entry in reversed(self.ranked) if entry.trial.best_value is not None), None)

    @property
    def metric_label(self) -> str:
        return self.metric.label

    @property
    def chance(self) -> float | None:
        """What the metric is compared with instead of the base model, which is its reference; None for all others."""
        return chance_of(self.facts, metric=self.metric.name)


def best_first(
    trials: Iterable[TrialRecord], *, metric: ObjectiveMetric, finals: Comparison | None = None
) -> list[TrialRecord]:
    """Return ``trials``: those of ``finals`` in its order, then by their best checkpoint, those without one last."""
    finalists = [] if finals is None else [entry.trial_id for entry in finals.ranked]

    def order(trial: TrialRecord) -> tuple[float, ...]:
        if trial.trial_id in finalists:
            return (0, finalists.index(trial.trial_id))
        return (1, *(trial.order(metric) or (math.inf, trial.trial_id)))

    return sorted(trials, key=order)


def _why(trial: TrialRecord, *, metric: ObjectiveMetric, finals: Comparison | None) -> str:
    ended = {
        TrialStatus.COMPLETED: "its one step" if trial.steps_done == 1 else f"all {trial.steps_done} steps",
        TrialStatus.STOPPED: f"stopped at step {trial.steps_done}: {trial.reason}",
        TrialStatus.FAILED: f"failed at step {trial.steps_done}: {trial.message or 'no message'}",
        TrialStatus.PARKED: f"paused at step {trial.steps_done}",
        TrialStatus.RUNNING: f"running, step {trial.steps_done}",
        TrialStatus.WAITING: "not begun",
    }[trial.status]
    if trial.best_value is None:
        return f"no finite {metric.label}; {ended}"
    # a share says little by itself: trials of equal score differ in the loss they reach it with
    loss = "" if metric.name == LOSS.name or trial.best_loss is None else f" (validation loss {trial.best_loss:.4g})"
    reached = f"{metric.label} {trial.best_value:.4g}{loss} at step {trial.best_step}; {ended}"
    found = None if finals is None else finals.of_trial(trial.trial_id)
    if finals is None or found is None or metric.name not in found.values:
        return reached
    final = f"{metric.label} {found.values[metric.name].value:.4g} on {finals.rows_text}"
    return f"{final} (finalist); in training {reached.removeprefix(f'{metric.label} ')}"


def _size(trial: TrialRecord, *, facts: RunFacts) -> AdapterSize | None:
    if facts.inputs.adapted_shapes is None:
        return None
    settings = {**(facts.task.training or {}), **trial.parameters}
    lora = (facts.task.document or {}).get("lora")
    return adapter_size(
        settings,
        shapes=facts.inputs.adapted_shapes,
        lora=lora if isinstance(lora, dict) else {},
        whole_entries=(facts.inputs.whole_modules or {}).get("entries", 0),
    )


def _ranked(rank: int, trial: TrialRecord, *, facts: RunFacts) -> RankedTrial:
    finals, metric = facts.finals, facts.objective_metric
    final = None if finals is None else finals.of_trial(trial.trial_id)
    return RankedTrial(
        rank=rank,
        trial=trial,
        why=_why(trial, metric=metric, finals=finals),
        evaluation_rows=facts.inputs.evaluation_rows,
        final=final,
        final_rows=None if finals is None or final is None else finals.num_rows,
        final_value=None if final is None else final.values.get(metric.name),
        size=_size(trial, facts=facts),
    )


def _chance_not_worse(
    reader: RunReader, best: TrialRecord | None, *, facts: RunFacts, metric: ObjectiveMetric
) -> float | None:
    if facts.finals is not None or facts.base_rows is None or best is None or best.best_step is None:
        return None
    rows = reader.log.row_values(best.trial_id, step=best.best_step).get(metric.name, ())
    base = facts.base_rows.get(metric.name, ())
    if (chance := chance_of(facts, metric=metric.name)) is not None:
        base = (chance,) * len(rows)
    if len(rows) < FEWEST_ROWS or len(base) != len(rows) or not all(map(math.isfinite, (*rows, *base))):
        return None
    # runs that are only looked at need no numpy
    from cohort.core.statistics.paired_resamples import not_worse

    sign = metric.cost(1.0)
    (found,) = not_worse([[sign * row for row in rows]], [sign * row for row in base], risk=LARGEST_CHANCE)
    return found


def read_results(reader: RunReader, *, steps_taken: Mapping[int, StepsTaken] | None = None) -> RunResults:
    """Read the outcome so far; works at any moment of a run. ``steps_taken`` as of :meth:`RunReader.trials`."""
    # one moment for all: ranks and times of different moments would contradict each other
    with reader.snapshot():
        facts, trials, run_seconds = reader.facts(), reader.trials(steps_taken=steps_taken), reader.run_seconds()
    metric = facts.objective_metric
    by_id = {trial.trial_id: trial for trial in trials}
    ordered = best_first(trials, metric=metric, finals=facts.finals)
    # the run's own choice comes first: best/ holds that adapter
    best = None if facts.best_trial_id is None else by_id.get(facts.best_trial_id)
    if best is None and ordered and ordered[0].best_value is not None:
        best = ordered[0]
    default, default_trial = (facts.default_metrics or {}).get(metric.name), None
    if default is None and facts.task.default_trial_id is not None:
        default_trial = by_id.get(facts.task.default_trial_id)
        default = None if default_trial is None else default_trial.best_value
    return RunResults(
        metric=metric,
        ranked=tuple(_ranked(rank, trial, facts=facts) for rank, trial in enumerate(ordered, start=1)),
        best=best,
        base_value=(facts.base_metrics or {}).get(metric.name),
        default_value=default,
        default_trial=default_trial,
        compute=compute_saved(trials, more_evaluated=0 if facts.finals is None else facts.finals.num_tokens),
        run_seconds=run_seconds,
        facts=facts,
        chance_not_worse=_chance_not_worse(reader, best, facts=facts, metric=metric),
    )
