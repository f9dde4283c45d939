"""Trials, events and decisions for a log, with only what a test is about spelled out."""

from __future__ import annotations

from cohort.core.events import Evaluated, StepDone
from cohort.runs.records import TrialRecord
from cohort.tuning.decisions import Decision, DecisionKind, Reason

__all__ = ["decided", "evaluated", "new_trials", "step_done"]


def new_trials(count: int) -> list[TrialRecord]:
    return [
        TrialRecord(trial_id=n, parameters={"r": 8, "learning_rate": 1e-5}, planned_steps=10, seed=2**64 - 1 - n)
        for n in range(count)
    ]


def step_done(trial_id: int, step: int, loss: float = 1.0) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)


def evaluated(trial_id: int, step: int, loss: float, **metrics: float) -> Evaluated:
    return Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics=metrics, num_tokens=40)


def decided(trial_id: int, step: int, kind: DecisionKind, reason: Reason, **numbers: float) -> Decision:
    return Decision(trial_id=trial_id, step=step, kind=kind, reason=reason, rule="patterns", numbers=numbers)
