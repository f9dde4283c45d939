"""What a metric is given."""

from __future__ import annotations

import re

import pytest

from cohort.metrics.metric import MetricOptions, ReferenceRow


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
