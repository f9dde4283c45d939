"""What follows from where a trial stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.runs.records import TrialRecord
from cohort.tuning.objective_metric import LOSS
from cohort.tuning.trial_status import TrialStatus

NEW = TrialRecord(trial_id=7, parameters={"r": 8}, planned_steps=4, seed=0)


def test_a_new_trial_has_done_nothing() -> None:
    assert (NEW.status, NEW.state, NEW.steps_done, NEW.tokens) == (TrialStatus.WAITING, "waiting", 0, 0)
    assert NEW.order(LOSS) is None


@pytest.mark.parametrize(
    ("status", "reason", "is_protected", "state"),
    [
        (TrialStatus.RUNNING, "", False, "running"),
        (TrialStatus.RUNNING, "", True, "running, kept"),
        (TrialStatus.STOPPED, "diverging", True, "diverging"),
        (TrialStatus.STOPPED, "", True, "stopped"),
        (TrialStatus.COMPLETED, "completed", True, "completed"),
    ],
)
def test_its_state_says_why_it_was_stopped_and_that_it_is_kept(
    status: TrialStatus, reason: str, is_protected: bool, state: str
) -> None:
    assert replace(NEW, status=status, reason=reason, is_protected=is_protected).state == state


def test_its_order_is_that_of_its_best_checkpoint() -> None:
    measured = replace(NEW, best_step=4, best_value=1.5, best_loss=1.5)
    assert measured.order(LOSS) == LOSS.order(1.5, validation_loss=1.5, step=4, trial_id=7)
