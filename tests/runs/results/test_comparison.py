"""Comparisons are stored as JSON and read back whole."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from cohort.core.statistics.estimates import Estimate
from cohort.runs.results.comparison import Comparison, Contender


def contender(trial_id: int | None, value: float) -> Contender:
    estimate = Estimate(value=value, low=value - 0.1, high=None, num_rows=8)
    minus = {} if trial_id == 3 else {"loss": replace(estimate, value=1.0 - value)}
    return Contender(
        trial_id=trial_id, step=None if trial_id is None else 40, values={"loss": estimate}, winner_minus=minus
    )


COMPARED = Comparison(
    num_rows=8,
    num_available=8,
    num_tokens=640,
    ranked=(contender(3, 1.0), contender(1, 1.2)),
    others=(contender(None, 3.0), contender(0, 2.0)),
)


def test_what_is_stored_is_read_back() -> None:
    stored = json.loads(json.dumps(asdict(COMPARED)))
    assert Comparison.from_json(stored) == COMPARED


def test_winner_base_and_trials_are_found() -> None:
    assert COMPARED.winner.trial_id == 3
    assert COMPARED.base is COMPARED.others[0]
    default = COMPARED.of_trial(0)
    assert default is COMPARED.others[1], "one that could not win counts as measured"
    assert COMPARED.of_trial(7) is None
    assert replace(COMPARED, others=()).base is None


def test_rows_that_were_left_out_are_told() -> None:
    assert COMPARED.rows_text == "all 8 validation rows"
    assert replace(COMPARED, num_available=20, split="test").rows_text == "8 of 20 test rows"
