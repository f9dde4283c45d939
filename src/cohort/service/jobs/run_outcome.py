"""What a finished run gives a job: its winner, its numbers, its results file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import RunStateError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.service.jobs.results_file import results_csv
from cohort.service.jobs.run_usage import read_usage
from cohort.store.enums import UsageKind

__all__ = ["RunOutcome", "read_outcome"]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        adapter: The directory of the best adapter.
        step: The step of its best evaluation.
        parameters: The trial's hyperparameters by their task-file names.
        epochs: Passes over the rows up to ``step``.
        metrics: ``train_loss``, ``valid_loss`` and further metrics at ``step``.
        trained_tokens: Of all trials.
        usage: What the run used in total.
        results: The results file, CSV.
    """

    adapter: Path
    step: int
    parameters: Mapping[str, Any]
    epochs: float
    metrics: Mapping[str, float | None]
    trained_tokens: int
    usage: Mapping[UsageKind, float]
    results: bytes


def read_outcome(directory: Path) -> RunOutcome:
    """Read the result of a run that is done.

    Raises:
        RunStateError: no trial reached a finite evaluation, or the record cannot be read.
    """
    run = RunDirectory(directory)
    with RunReader.open(run.database) as reader:
        results = read_results(reader)
        best = results.best
        if best is None or best.best_step is None:
            raise RunStateError(
                "no trial reached a finite loss; use a smaller learning_rate_multiplier, or leave it auto"
            )
        usage = read_usage(reader)
        steps, evaluations = reader.log.steps(best.trial_id), reader.log.evaluations(best.trial_id)
    settings = {**(results.facts.task.training or {}), **best.parameters}
    rows, batch = results.facts.inputs.num_train_rows or 1, int(str(settings.get("batch_size", 1)))
    steps_of_epoch = max(1.0, math.ceil(rows / batch))
    train_loss = next((each.loss for each in steps if each.step == best.best_step), None)
    return RunOutcome(
        adapter=run.best,
        step=best.best_step,
        parameters=settings,
        epochs=best.best_step / steps_of_epoch,
        metrics={"train_loss": train_loss, "valid_loss": best.best_loss, **best.best_metrics},
        trained_tokens=results.compute.trained_tokens,
        usage=usage,
        results=results_csv(steps, evaluations, steps_of_epoch=steps_of_epoch),
    )
