"""Windows of packs whose steps take unequally long: as many steps of each as take about the same time."""

from __future__ import annotations

from cohort.scheduling.packing.windows import window_quotas

RANKS = {0: 0, 1: 0, 2: 1}


def test_a_fast_executor_takes_more_steps_than_a_slow_one() -> None:
    quotas = window_quotas({0: 99, 1: 99, 2: 99}, ranks=RANKS, step_seconds={0: 1.0, 1: 4.0}, most_steps=16)
    assert quotas == {0: 64, 1: 64, 2: 16}


def test_no_trial_passes_its_next_evaluation() -> None:
    quotas = window_quotas({0: 3, 1: 99, 2: 20}, ranks=RANKS, step_seconds={0: 1.0, 1: 1.0}, most_steps=16)
    assert quotas == {0: 3, 1: 16, 2: 16}


def test_a_window_ends_where_an_executor_would_have_nothing_to_do() -> None:
    quotas = window_quotas({0: 3, 1: 2, 2: 20}, ranks=RANKS, step_seconds={0: 2.0, 1: 1.0}, most_steps=16)
    assert quotas == {0: 3, 1: 2, 2: 6}


def test_the_slowest_takes_a_step_at_least() -> None:
    quotas = window_quotas({0: 1, 1: 1, 2: 9}, ranks=RANKS, step_seconds={0: 1.0, 1: 100.0}, most_steps=4)
    assert quotas == {0: 1, 1: 1, 2: 1}
