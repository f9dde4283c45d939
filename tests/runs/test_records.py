"""What follows from where a trial stands."""

from __future__ import annotations

import pytest

from cohort.runs.records import TrialRecord
from cohort.tuning.trial_status import TrialStatus


@pytest.mark.parametrize("status", TrialStatus)
def test_a_trial_is_over_once_nothing_more_can_happen_to_it(status: TrialStatus) -> None:
    record = TrialRecord(
        trial_id=0,
        parameters={},
        planned_steps=4,
        seed=0,
        planned_tokens=None,
        status=status,
        reason="",
        message="",
        steps_done=2,
        tokens=8,
        evaluation_tokens=0,
        last_loss=None,
        best_step=None,
        best_value=None,
        best_loss=None,
    )
    assert record.status.is_final == (status in (TrialStatus.STOPPED, TrialStatus.COMPLETED, TrialStatus.FAILED))
