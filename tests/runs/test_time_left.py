"""About how long a run will take."""

from __future__ import annotations

import pytest

from cohort.runs.time_left import TrialAhead, seconds_left


def ahead(done: int, *, tokens_per_step: float = 10.0) -> TrialAhead:
    return TrialAhead(steps_done=done, planned_steps=100, warmup_steps=20, tokens_per_step=tokens_per_step)


def left(*trials: TrialAhead, evaluated: int = 0, rate: float | None = 5.0) -> float | None:
    return seconds_left(
        trials, kept_share=0.25, trained_tokens=400, evaluation_tokens=evaluated, tokens_per_second=rate
    )


def test_before_the_selection_a_share_of_the_trials_is_expected_to_go_on() -> None:
    # parked at the end of warm-up, and half way through it: 10 more steps of warm-up, then 80 of each with a quarter
    assert left(ahead(20), ahead(10)) == pytest.approx((10 + 0.25 * (80 + 80)) * 10 / 5)


def test_after_the_selection_all_that_are_left_go_on() -> None:
    assert left(ahead(20), ahead(60)) == pytest.approx((80 + 40) * 10 / 5)


def test_a_new_trial_does_not_put_those_in_doubt_that_were_selected() -> None:
    assert left(ahead(0), ahead(60)) == pytest.approx((20 + 0.25 * 80 + 40) * 10 / 5)


def test_evaluations_take_their_part() -> None:
    assert left(ahead(60), evaluated=100) == pytest.approx(40 * 10 * 1.25 / 5)


def test_nothing_can_be_said_without_a_rate_and_nothing_is_left_at_the_end() -> None:
    assert left(ahead(60), rate=None) is None
    assert left() == 0
