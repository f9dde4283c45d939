"""Final phases are left by nothing, and every other one can reach an end."""

from __future__ import annotations

from cohort.tuning.trial_phase import TrialPhase, may_become


def test_only_final_phases_lead_nowhere() -> None:
    closed = {phase for phase in TrialPhase if not may_become(phase)}
    # a person may resume a trial that was stopped; nothing else leads on from there
    assert closed == {phase for phase in TrialPhase if phase.is_final} - {TrialPhase.STOPPED}
    assert may_become(TrialPhase.STOPPED) == {TrialPhase.READY}
    assert all(TrialPhase.FAILED in may_become(phase) for phase in TrialPhase if not phase.is_final)


def test_a_parked_trial_waits_for_a_verdict_before_it_runs() -> None:
    assert TrialPhase.RUNNING not in may_become(TrialPhase.PARKED)
    assert TrialPhase.RUNNING in may_become(TrialPhase.READY)
    assert not any(TrialPhase.WAITING in may_become(phase) for phase in TrialPhase)
