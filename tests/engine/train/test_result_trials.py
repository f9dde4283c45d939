"""Whose best checkpoints the results are made from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cohort.engine.train.result_trials import has_adapter_directory, trials_of_results, trials_to_forget
from cohort.tuning.decisions import COMPLETED, FAILED, NON_FINITE, Reason

LOST = Reason("lost", is_comparison=True)


def study_of(reasons: dict[int, Reason], leaders: list[int]) -> Any:
    return SimpleNamespace(
        trial_ids=tuple(reasons),
        reason=lambda trial_id: reasons[trial_id],
        leaders=lambda: [SimpleNamespace(trial_id=trial_id) for trial_id in leaders],
    )


def test_those_that_lost_have_no_directory() -> None:
    assert [has_adapter_directory(reason) for reason in (None, COMPLETED, NON_FINITE, LOST, FAILED)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_finalists_and_the_default_are_needed_however_they_ended() -> None:
    study = study_of({0: COMPLETED, 1: LOST, 2: LOST, 3: LOST, 4: FAILED, 5: NON_FINITE}, leaders=[1, 0, 3, 2, 4])
    assert trials_of_results(study, default_trial_id=3, num_finalists=2) == {0, 1, 3, 5}
    # the best one is needed where nothing is compared at the end
    assert trials_of_results(study, default_trial_id=None, num_finalists=0) == {0, 1, 5}


def test_the_best_of_those_that_lost_are_kept() -> None:
    study = study_of({}, leaders=[1, 0, 3, 2, 4])
    assert trials_to_forget(study, needed={1, 3}, limit=1) == {2, 4}
    assert trials_to_forget(study, needed={1, 3}, limit=0) == {0, 2, 4}
    assert trials_to_forget(study, needed={1, 3}, limit=9) == frozenset()
