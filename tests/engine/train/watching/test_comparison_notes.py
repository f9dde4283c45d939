"""One line about trials that go on because the rows do not tell them from the best, with the reason."""

from __future__ import annotations

import pytest

from cohort.engine.train.watching.comparison_notes import undecided_note
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.early_exit.rule import UNDECIDED
from cohort.tuning.early_exit.separation import FEWEST_ROWS


def kept(trial_id: int, *, num_rows: int, reason: Reason = UNDECIDED) -> Decision:
    numbers = {"best_trial": 4.0, "num_rows": float(num_rows), "risk": 0.05}
    return Decision(trial_id=trial_id, step=9, kind=DecisionKind.KEEP, reason=reason, rule="patterns", numbers=numbers)


@pytest.mark.parametrize(
    ("num_rows", "why"),
    [(FEWEST_ROWS - 1, f"fewer than {FEWEST_ROWS}"), (FEWEST_ROWS, "at early_exit.risk 0.05")],
)
def test_the_note_says_whether_the_rows_or_the_risk_are_the_reason(num_rows: int, why: str) -> None:
    assert undecided_note([kept(1, num_rows=num_rows), kept(2, num_rows=num_rows)]) == (
        "2 more trials go on than the comparison keeps by rank: "
        f"{num_rows} validation rows ({why}) do not tell them from trial 4"
    )


def test_only_undecided_trials_are_counted() -> None:
    other = Reason("ranked first", label="kept")
    assert undecided_note([kept(1, num_rows=50, reason=other)]) is None
    note = undecided_note([kept(1, num_rows=50, reason=other), kept(2, num_rows=50)])
    assert note is not None
    assert note.startswith("1 more trial goes on")
    assert note.endswith("do not tell it from trial 4")
