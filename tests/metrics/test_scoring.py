"""Scores of each row by metric, and who failed where."""

from __future__ import annotations

import pytest

from cohort.metrics.metric import Metric, MetricFailedError, ReferenceRow, Row
from cohort.metrics.scoring import score_texts

ROWS = [
    ReferenceRow(where="rows.jsonl:1", prompt="1+1=", reference="2", columns='{"weight": 3}'),
    ReferenceRow(where="rows.jsonl:2", prompt="2+2=", reference="4", columns='{"weight": 5}'),
]


def _metric(name: str) -> Metric:
    def score(prediction: str, row: Row) -> float:
        if prediction == "bad":
            raise MetricFailedError("raised ValueError")
        return float(row["weight"]) if name == "weight" else float(prediction == row["completion"])

    return Metric(name=name, score=score, shown=f"mine.py:{name}")


def test_each_metric_scores_each_text_by_its_own_row() -> None:
    assert score_texts([_metric("right"), _metric("weight")], ["2", "2"], ROWS) == {
        "right": [1.0, 0.0],
        "weight": [3.0, 5.0],
    }
    assert score_texts([], ["2", "2"], ROWS) == {}
    assert score_texts([_metric("right")], [], []) == {"right": []}


def test_a_failure_names_metric_row_and_prediction() -> None:
    with pytest.raises(
        MetricFailedError, match=r"the metric mine.py:right raised ValueError; row rows.jsonl:2, prediction 'bad'"
    ) as failed:
        score_texts([_metric("right")], ["2", "bad"], ROWS)
    assert isinstance(failed.value.__cause__, MetricFailedError)


def test_a_text_without_a_row_is_no_silent_loss() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score_texts([_metric("right")], ["2", "4", "6"], ROWS)
