"""What a contender's record says, from what it has on each row."""

from __future__ import annotations

from cohort.core.statistics.estimates import RowValues
from cohort.runs.results.measured_contender import measured_contender


def test_a_contender_is_compared_with_the_winner_row_by_row_and_the_winner_with_none() -> None:
    best = {"contains": RowValues.of_scores((1.0, 1.0, 1.0, 0.0))}
    other = {"contains": RowValues.of_scores((1.0, 0.0, 0.0, 0.0))}
    winner = measured_contender(best, trial_id=3, step=7, winner=None)
    base = measured_contender(other, trial_id=None, step=None, winner=best)
    assert (winner.trial_id, winner.step, winner.winner_minus) == (3, 7, {})
    assert (winner.values["contains"].value, base.values["contains"].value) == (0.75, 0.25)
    minus = base.winner_minus["contains"]
    assert (minus.value, minus.num_rows, minus.excludes_zero) == (0.5, 4, False)
