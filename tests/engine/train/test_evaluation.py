"""Losses and metrics of the same rows become one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.statistics.estimates import RowValues
from cohort.engine.train import evaluation
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.train.row_scores import Scores
from cohort.training.evaluation_loss import EvaluationLoss

ROWS: Any = "rows"


class Executor:
    """Trial n has a loss of n on each of two rows of 2 and 4 trained tokens."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, ...], Any, tuple[int, ...]]] = []

    def evaluate(self, trial_ids: Sequence[int], *, rows: Any, row_ids: Sequence[int]) -> dict[int, EvaluationLoss]:
        self.asked.append((tuple(trial_ids), rows, tuple(row_ids)))
        return {trial_id: self._loss(float(trial_id)) for trial_id in trial_ids}

    def evaluate_base(self, *, rows: Any, row_ids: Sequence[int], objective: str) -> EvaluationLoss:
        assert objective == "the task's own"
        return self._loss(9.0)

    def _loss(self, value: float) -> EvaluationLoss:
        return EvaluationLoss(
            loss=value,
            num_tokens=10,
            metrics={"margin": 0.5},
            terms=(2 * value, 4 * value),
            divisors=(2, 4),
            group_metrics={"margin": (0.25, 0.75)},
        )


class HalfRight:
    """Half of a trial's answers are right; generation reads and writes seven tokens."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def of(self, trial_ids: Sequence[int | None], *, rows: Any, row_ids: Sequence[int]) -> list[Any]:
        scores = Scores(by_metric={"exact_match": (1.0, 0.0), "none": ()}, num_tokens=7, num_answers=2, num_endless=2)
        return [scores for _ in trial_ids]


@pytest.fixture
def executor() -> Executor:
    return Executor()


@pytest.fixture
def evaluator(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> RunEvaluator:
    monkeypatch.setattr(evaluation, "RowScores", HalfRight)
    data = SimpleNamespace(validation=ROWS)
    preparation: Any = SimpleNamespace(
        inputs=SimpleNamespace(data=data),
        evaluation_rows=(4, 1),
        objective="the task's own",
        task=SimpleNamespace(evaluation=SimpleNamespace(metric_name="margin")),
    )
    fake: Any = executor
    time_spent: Any = None
    return RunEvaluator(preparation, fake, time_spent=time_spent)


def test_trials_are_evaluated_together_in_the_order_they_are_asked_for(
    evaluator: RunEvaluator, executor: Executor
) -> None:
    found = evaluator({3: 20, 1: 10})
    assert [(event.trial_id, event.step, event.validation_loss) for event in found] == [(3, 20, 3.0), (1, 10, 1.0)]
    assert executor.asked == [((3, 1), ROWS, (4, 1))], "one packed pass on the run's evaluation rows"
    # the tokens of both passes; a metric without a row to score is 0
    assert found[0].num_tokens == 17
    assert found[0].metrics == {"margin": 0.5, "exact_match": 0.5, "none": 0.0}


@pytest.mark.parametrize(
    ("metric", "compared"),
    [
        ("loss", {"loss": (6.0, 12.0)}),
        ("margin", {"loss": (6.0, 12.0), "margin": (0.25, 0.75)}),
        # most answers of a young trial are wrong: nothing to compare by
        ("exact_match", {"loss": (6.0, 12.0)}),
    ],
)
def test_trials_are_compared_by_the_loss_and_by_what_its_pass_measures(
    evaluator: RunEvaluator, metric: str, compared: dict[str, tuple[float, ...]]
) -> None:
    evaluator._preparation.task.evaluation.metric_name = metric  # type: ignore[misc]
    (found,) = evaluator({3: 20})
    assert found.row_values == compared


def test_the_values_by_row_give_the_values_on_all_rows(evaluator: RunEvaluator) -> None:
    (measured,) = evaluator.measure([2], rows=ROWS, row_ids=[0, 1])
    assert measured.rows["loss"] == RowValues(values=(4.0, 8.0), weights=(2, 4))
    assert measured.rows["loss"].value == measured.validation_loss == 2.0
    for name in ("margin", "exact_match"):
        assert measured.rows[name].value == measured.metrics[name] == 0.5


def test_the_frozen_model_is_measured_in_the_same_way(evaluator: RunEvaluator) -> None:
    base = evaluator.measure_base(rows=ROWS, row_ids=[0, 1])
    assert (base.validation_loss, base.num_tokens) == (9.0, 17)
    assert list(base.rows) == ["loss", "margin", "exact_match", "none"]


def test_answers_that_never_end_are_noted(evaluator: RunEvaluator) -> None:
    base = evaluator.measure_base(rows=ROWS, row_ids=[0, 1])
    note = "no answer of the base model to 2 prompts ended within max_new_tokens 64"
    assert base.endless_note("the base model", max_new_tokens=64) == note
    assert replace(base, num_endless=1).endless_note("it", max_new_tokens=64) is None
    assert replace(base, num_answers=0, num_endless=0).endless_note("it", max_new_tokens=64) is None
