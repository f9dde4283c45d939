"""Decisions survive their way through a file."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.early_exit import reasons


@given(
    numbers=st.dictionaries(st.text(max_size=5), st.floats(), max_size=4),
    kind=st.sampled_from(DecisionKind),
    reason=st.sampled_from(reasons()),
    message=st.text(max_size=10),
)
def test_json_round_trip(numbers: dict[str, float], kind: DecisionKind, reason: Reason, message: str) -> None:
    decision = Decision(
        trial_id=3, step=7, kind=kind, reason=reason, rule="divergence", numbers=numbers, message=message
    )
    text = json.dumps(decision.to_json(), allow_nan=False)
    back = Decision.from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    for name, value in numbers.items():
        assert back.numbers[name] == value or (math.isnan(value) and math.isnan(back.numbers[name]))
    assert isinstance(back.kind, DecisionKind)
    assert isinstance(back.reason, Reason)
