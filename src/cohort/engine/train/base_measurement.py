"""The base model of a task is measured: what adapters are compared with, and whether its numbers are finite."""

from __future__ import annotations

import math

from cohort.core.errors import InputError, Problem
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.train.open_run import OpenRun
from cohort.models.finite_weights import non_finite_weights
from cohort.prepare.preparation import Preparation
from cohort.runs.facts import Activity

__all__ = ["measure_base"]


def measure_base(preparation: Preparation, run: OpenRun, *, evaluator: RunEvaluator) -> None:
    """Measure the frozen model on the rows of the evaluations, and record what was found.

    Raises:
        InputError: its loss is no finite number, so that no adapter of it could have one.
    """
    rows, row_ids = preparation.inputs.data.validation, preparation.evaluation_rows
    with run.time_spent.on(Activity.EVALUATE):
        base = evaluator.measure_base(rows=rows, row_ids=row_ids)
    if not math.isfinite(base.validation_loss):
        raise InputError(_broken_base(preparation, base.validation_loss))
    run.store.set_facts(base_metrics={"loss": base.validation_loss, **base.metrics})
    evaluation = preparation.task.evaluation
    # without a comparison at the end these rows alone tell whether the best trial is worse than the base model
    if not evaluation.finalists:
        run.store.set_facts(base_rows=evaluator.compared(base))
    most = evaluation.max_new_tokens
    if (endless := base.endless_note("the base model", max_new_tokens=most)) is not None:
        run.watcher.note(f"{endless}; trials learn to end them from the rows, where the model can")


def _broken_base(preparation: Preparation, loss: float) -> Problem:
    """Return the problem of a base model whose loss is no number: its files or its arithmetic are the cause."""
    task, names = preparation.task, non_finite_weights(preparation.inputs.model_directory)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    cause, hint = f"NaN or infinite weights in {', '.join(names[:3])}{more}", "Fetch its files again."
    if not names:
        dtype = preparation.machine.dtype
        cause = f"all of its weights are finite, so its numbers overflow in {dtype}"
        hint = "Choose another base model, or check its config.json against its weights."
    return Problem(
        where=task.where("model_name_or_path"),
        found=f"a base model whose validation loss is {loss} before any training: {cause}",
        allowed="a base model with a finite loss",
        hint=hint,
    )
