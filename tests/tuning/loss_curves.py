"""Recorded curves for tests: one optimizer step per evaluation, so that losses can be read off a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.core.events import Evaluated, StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.replay import RecordedCurve
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus

BY_RANK: dict[str, float] = {
    "risk": 1.0,
    "compare_after_steps": 1,
    "select_at_least": 1,
    "reselect_at_least": 1,
    "finish_fraction": 1.0,
}
"""Keys of ``early_exit`` with which ranks alone decide, as in ALTO, from the first step on and among any two trials."""


def by_rank(**keys: Any) -> EarlyExitSettings:
    """Return settings under which ranks alone decide."""
    return EarlyExitSettings(**{**BY_RANK, **keys})


def step_done(trial_id: int, step: int, loss: float, *, grad_norm: float = 1.0) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=grad_norm, learning_rate=1e-4, num_tokens=10)


def curve(
    trial_id: int, *, validation: Sequence[float], train: Sequence[float] | None = None, warmup_steps: int = 1
) -> RecordedCurve:
    """A trial that is evaluated after each step; its training loss equals its validation loss unless given."""
    steps = tuple(range(1, len(validation) + 1))
    candidate = Candidate(
        trial_id=trial_id, planned_steps=len(validation), warmup_steps=warmup_steps, evaluation_steps=steps
    )
    return RecordedCurve(
        candidate=candidate,
        train_losses=tuple(validation if train is None else train),
        validation_losses=dict(zip(steps, validation, strict=True)),
    )


def run_alone(recorded: RecordedCurve, settings: EarlyExitSettings) -> Study:
    """Drive one trial alone to its end and return the study."""
    study = Study([recorded.candidate], settings)
    while not study.is_finished:
        advance(study, recorded)
    return study


def advance(study: Study, recorded: RecordedCurve) -> list[StepDone | Evaluated]:
    """Do the next step of a trial and the evaluation that is due; return the events."""
    trial_id = recorded.candidate.trial_id
    if study.status(trial_id) is not TrialStatus.RUNNING:
        study.start(trial_id)
    step = study.trajectory(trial_id).num_steps + 1
    done = step_done(trial_id, step, recorded.train_losses[step - 1])
    study.observe(done)
    if study.next_evaluation(trial_id) != step:
        return [done]
    evaluated = Evaluated(trial_id=trial_id, step=step, validation_loss=recorded.validation_losses[step])
    study.observe(evaluated)
    return [done, evaluated]


def endings(decisions: Sequence[Decision]) -> list[tuple[int, int, str, str]]:
    """(trial, step, kind, reason) of every decision but the new bests."""
    return [(d.trial_id, d.step, d.kind.value, d.reason) for d in decisions if d.kind != DecisionKind.NEW_BEST]


def ending(study: Study, trial_id: int = 0) -> tuple[int, str, str]:
    """(step, reason, rule) of the decision that ended a trial."""
    (last,) = [
        d for d in study.decisions if d.trial_id == trial_id and d.kind in (DecisionKind.STOP, DecisionKind.FINISH)
    ]
    return last.step, last.reason, last.rule
