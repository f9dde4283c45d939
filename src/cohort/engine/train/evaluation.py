"""Evaluations of a run: packed validation losses, and the metrics that the task asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cohort.core.events import Evaluated
from cohort.core.statistics.estimates import RowValues
from cohort.core.units import counted
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.row_scores import RowScores, Scores
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.metrics import REWARD, REWARD_MARGIN
from cohort.prepare.preparation import Preparation
from cohort.training.evaluation_loss import EvaluationLoss

__all__ = ["Measured", "RunEvaluator"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Validation loss, further metrics, and the number of tokens read and generated.

    Attributes:
        rows: What the loss and each metric consist of, row by row; ``loss`` is a name among those of the metrics.
        of_groups: Names in ``rows`` that the objective's own pass measures.
        num_answers, num_endless: Answers that were generated, and those of them that did not end by themselves.
    """

    validation_loss: float
    metrics: dict[str, float]
    num_tokens: int
    rows: Mapping[str, RowValues]
    of_groups: frozenset[str] = frozenset()
    num_answers: int = 0
    num_endless: int = 0

    def endless_note(self, whose: str, *, max_new_tokens: int) -> str | None:
        """Return a note where no answer ended by itself, so that none can be exact; else None."""
        if not self.num_answers or self.num_endless < self.num_answers:
            return None
        return (
            f"no answer of {whose} to {counted(self.num_answers, 'prompt')} ended within max_new_tokens "
            f"{max_new_tokens}"
        )


class RunEvaluator:
    """Evaluates adapters of one executor on the run's evaluation rows; satisfies the supervisor's ``Evaluator``."""

    def __init__(self, preparation: Preparation, executor: ExecutorShare, *, time_spent: TimeSpent) -> None:
        """Evaluate with ``executor``; ``time_spent`` adds up the seconds of generation."""
        self._preparation = preparation
        self._executor = executor
        self._scores = RowScores(preparation, executor, time_spent=time_spent)

    def __call__(self, steps: Mapping[int, int]) -> Sequence[Evaluated]:
        """Return the evaluation of resident trials, in the order of ``steps``."""
        rows, row_ids = self._preparation.inputs.data.validation, self._preparation.evaluation_rows
        measured = self.measure(tuple(steps), rows=rows, row_ids=row_ids)
        return [
            Evaluated(
                trial_id=trial_id,
                step=steps[trial_id],
                validation_loss=outcome.validation_loss,
                metrics=outcome.metrics,
                num_tokens=outcome.num_tokens,
                row_values=self.compared(outcome),
            )
            for trial_id, outcome in zip(steps, measured, strict=True)
        ]

    def compared(self, outcome: Measured) -> dict[str, tuple[float, ...]]:
        """Return what is compared during training, row by row: the loss, and the metric if the same pass measures it.

        A metric of generated answers is mostly 0 when trials are compared first; the loss tells them apart long before.
        """
        names = {"loss", self._preparation.task.evaluation.metric_name} & outcome.of_groups
        # as the record keeps them: a resumed run compares the same numbers
        return {name: tuple(np.asarray(outcome.rows[name].values, dtype=np.float32).tolist()) for name in sorted(names)}

    def measure(self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]) -> list[Measured]:
        """Measure resident trials on any rows."""
        losses = self._executor.evaluate(trial_ids, rows=rows, row_ids=row_ids)
        scored = self._scores.of(trial_ids, rows=rows, row_ids=row_ids)
        return [_measured(losses[trial_id], scores) for trial_id, scores in zip(trial_ids, scored, strict=True)]

    def measure_base(self, *, rows: TokenisedRows, row_ids: Sequence[int]) -> Measured:
        """Measure the frozen model itself."""
        objective = self._preparation.objective
        loss = self._executor.evaluate_base(rows=rows, row_ids=row_ids, objective=objective)
        (scores,) = self._scores.of([None], rows=rows, row_ids=row_ids)
        return _measured(loss, scores)


def _measured(loss: EvaluationLoss, scores: Scores) -> Measured:
    """Join what the objective and the metrics gave on the same rows."""
    by_metric = scores.by_metric
    # rows of plain text have no prompt, so a metric may have no row at all
    means = {name: sum(of_rows) / max(1, len(of_rows)) for name, of_rows in by_metric.items()}
    of_groups = {
        # hits and shares lie between 0 and 1; others have no bounds, so that intervals follow from their spread
        name: RowValues.of_scores(values, is_unbounded=name in (REWARD, REWARD_MARGIN))
        for name, values in {**loss.group_metrics, **by_metric}.items()
    }
    return Measured(
        validation_loss=loss.loss,
        metrics={**loss.metrics, **means},
        num_tokens=loss.num_tokens + scores.num_tokens,
        rows={"loss": RowValues(values=loss.terms, weights=loss.divisors), **of_groups},
        of_groups=frozenset(("loss", *loss.group_metrics)),
        num_answers=scores.num_answers,
        num_endless=scores.num_endless,
    )
