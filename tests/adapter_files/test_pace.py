"""The pace of a batch: what was answered, how fast, and how long the others may take."""

from __future__ import annotations

import pytest

from cohort.adapter_files.pace import Pace
from cohort.core.clock import ManualClock
from cohort.ranks.answers import Answer


def answer(num_tokens: int) -> Answer:
    return Answer(index=0, tokens=(1,) * num_tokens, is_cut=False)


def test_nothing_is_predicted_before_the_first_answer() -> None:
    clock = ManualClock()
    pace = Pace(clock, num_rows=10)
    clock.advance(3.0)
    progress = pace.progress()
    assert (progress.num_done, progress.num_rows, progress.elapsed_seconds) == (0, 10, 3.0)
    assert progress.tokens_per_second is None
    assert progress.seconds_left is None


def test_nothing_is_predicted_from_the_first_of_many_answers() -> None:
    pace = Pace(ManualClock(), num_rows=40)
    pace.count(answer(3))
    assert pace.progress().seconds_left is None
    pace.count(answer(3))
    assert pace.progress().seconds_left is not None


def test_the_others_take_as_long_as_those_so_far() -> None:
    clock = ManualClock()
    pace = Pace(clock, num_rows=10)
    for num_tokens in (5, 15):
        clock.advance(2.0)
        pace.count(answer(num_tokens))
    progress = pace.progress()
    assert progress.tokens_per_second == pytest.approx(5.0)
    assert progress.seconds_left == pytest.approx(2.0 * 8)


def test_answers_of_an_earlier_process_count_as_done_and_not_for_the_speed() -> None:
    clock = ManualClock()
    pace = Pace(clock, num_rows=10, num_before=7)
    assert pace.progress().num_done == 7
    clock.advance(4.0)
    pace.count(answer(8))
    progress = pace.progress()
    assert (progress.num_done, progress.tokens_per_second) == (8, 2.0)
    assert progress.seconds_left == pytest.approx(8.0)


def test_at_the_end_nothing_is_left_and_empty_answers_have_no_speed() -> None:
    clock = ManualClock()
    pace = Pace(clock, num_rows=1)
    pace.count(answer(0))
    progress = pace.progress()
    # no time has passed, and no token was generated
    assert (progress.tokens_per_second, progress.seconds_left) == (None, 0.0)
