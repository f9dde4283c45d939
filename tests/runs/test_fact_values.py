"""Records within facts come back from JSON as they were."""

from __future__ import annotations

import json
from dataclasses import asdict

from cohort.core.memory_records import GradientCheckpointing, PassKind
from cohort.runs.fact_values import FROM_JSON
from cohort.runs.records import DataProblem


def test_records_come_back() -> None:
    problem = DataProblem(where="a:3", found="1 row", allowed="none", hint="Remove it.")
    stored = json.loads(json.dumps([asdict(problem)]))
    assert FROM_JSON["data_problems"](stored) == (problem,)
    assert FROM_JSON["memory_recompute"]("auto") is GradientCheckpointing.AUTO
    (kind,) = FROM_JSON["micro_batch_tokens"]({next(iter(PassKind)).value: 64})
    assert kind is next(iter(PassKind))
