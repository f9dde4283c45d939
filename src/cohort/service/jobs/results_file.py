"""The results file of a job: one row for each step of the winning trial, with TRL's and OpenAI's words."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from cohort.runs.records import EvaluationRecord, StepRecord

__all__ = ["results_csv"]

_COLUMNS = ("step", "epoch", "train_loss", "valid_loss", "learning_rate", "grad_norm", "num_tokens")


def results_csv(
    steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord], *, steps_of_epoch: float
) -> bytes:
    """Return the file; a number that is not finite, or was not measured at a step, is an empty cell."""
    by_step = {each.step: each for each in evaluations}
    metrics = sorted({name for each in evaluations for name in each.metrics})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"valid_{name}" for name in metrics)])
    trained = {each.step: each for each in steps}
    # an evaluation before the first step has a row of its own
    for step in sorted({*trained, *by_step}):
        done, found = trained.get(step), by_step.get(step)
        row = [step, f"{step / steps_of_epoch:.4f}"]
        row += [_cell(None if done is None else done.loss), _cell(None if found is None else found.validation_loss)]
        row += [_cell(None if done is None else getattr(done, name)) for name in ("learning_rate", "grad_norm")]
        row.append("" if done is None else str(done.num_tokens))
        row += [_cell(None if found is None else found.metrics.get(name)) for name in metrics]
        writer.writerow(row)
    return text.getvalue().encode()


def _cell(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.8g}"
