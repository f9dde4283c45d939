"""What was read is recorded as JSON."""

from __future__ import annotations

import json

from transformers import PreTrainedTokenizerBase

from cohort.data.report import DataReport
from tests.data.loading import Write, load, pairs


def test_the_report_is_json(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    report = load(tokenizer, train=write_jsonl([*pairs(12), *pairs(2)])).report
    assert DataReport.from_json(json.loads(json.dumps(report.to_json()))) == report
