"""What a metric is given."""

from __future__ import annotations

import re

import pytest

from cohort.metrics.metric import Metric, MetricFailedError, MetricOptions, ReferenceRow, Row, score_texts


def test_a_row_is_its_columns_with_prompt_and_completion_as_the_model_sees_them() -> None:
    columns = '{"prompt": "raw", "completion": "raw", "level": [1]}'
    row = ReferenceRow(where="rows.jsonl:1", prompt="<user> 1+1", reference="2", columns=columns)
    assert row.values() == {"prompt": "<user> 1+1", "completion": "2", "level": [1]}
    row.values()["level"].append(2)
    assert row.values()["level"] == [1], "a function that changes its row changes it for no other"
    assert ReferenceRow(where="", prompt="a", reference="b").values() == {"prompt": "a", "completion": "b"}


def test_a_pattern_that_cannot_match_is_refused_where_it_is_given() -> None:
    assert MetricOptions(answer_pattern=r"#### (.+)").answer_pattern == "#### (.+)"
    with pytest.raises(re.error):
        MetricOptions(answer_pattern="(")


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
