"""Final states are left by nothing, and every other one can reach an end."""

from __future__ import annotations

from cohort.tuning.trial_status import TrialStatus, may_become


def test_only_final_states_lead_nowhere() -> None:
    closed = {status for status in TrialStatus if not may_become(status)}
    # a person may resume a trial that was stopped; nothing else leads on from there
    assert closed == {status for status in TrialStatus if status.is_final} - {TrialStatus.STOPPED}
    assert may_become(TrialStatus.STOPPED) == {TrialStatus.PARKED}
    assert all(TrialStatus.FAILED in may_become(status) for status in TrialStatus if not status.is_final)


def test_a_trial_that_has_begun_never_waits_again() -> None:
    assert TrialStatus.RUNNING in may_become(TrialStatus.PARKED)
    assert not any(TrialStatus.WAITING in may_become(status) for status in TrialStatus)


def test_users_read_these_words() -> None:
    # JSON and the text of `cohort status`
    assert [str(status) for status in TrialStatus] == ["waiting", "running", "parked", "stopped", "completed", "failed"]
    assert [status.label for status in TrialStatus if status.label != str(status)] == ["paused"]
