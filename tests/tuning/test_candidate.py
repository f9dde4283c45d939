"""What a candidate must hold, and where its training stands at a share of its steps."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cohort.tuning.candidate import Candidate

TRIAL = Candidate(trial_id=0, planned_steps=10, warmup_steps=2, evaluation_steps=(1, 2, 5, 10))


@pytest.mark.parametrize(
    ("share", "after", "step"),
    [("1/10", 0, 1), ("11/100", 0, 2), ("1/2", 0, 5), ("1/10", 2, 5), ("6/10", 0, None), ("1/10", 5, None)],
)
def test_the_first_evaluation_at_a_share(share: str, after: int, step: int | None) -> None:
    assert TRIAL.first_evaluation_at_share(Fraction(share), after=after) == step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trial_id": -1}, "must not be negative"),
        ({"warmup_steps": 11}, "warmup_steps 11 must lie in"),
        ({"evaluation_steps": (2, 2, 10)}, "must be increasing"),
        ({"evaluation_steps": (2, 5)}, "must end at planned_steps 10"),
    ],
)
def test_what_is_refused(changes: dict[str, object], message: str) -> None:
    given = {"trial_id": 0, "planned_steps": 10, "warmup_steps": 2, "evaluation_steps": (1, 2, 5, 10), **changes}
    with pytest.raises(ValueError, match=message):
        Candidate(**given)  # type: ignore[arg-type]
