"""Callbacks hear what happened in its order, and of the best evaluation at a trial's end; errors are the caller's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cohort.core.events import Evaluated, StepDone
from cohort.engine.callbacks.callback_caller import CallbackCaller, CallbackError
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.tuning.decisions import COMPLETED, Decision, DecisionKind, Reason


class _Run:
    def parameters_of(self, trial_id: int) -> dict[str, Any]:
        return {"r": 8}

    def planned_steps_of(self, trial_id: int) -> int:
        return 4


def _step(step: int) -> StepDone:
    return StepDone(trial_id=0, step=step, loss=1.0, grad_norm=1.0, learning_rate=1e-3, num_tokens=8)


def _decision(step: int, kind: DecisionKind, reason: Reason) -> Decision:
    return Decision(trial_id=0, step=step, kind=kind, reason=reason, rule="patterns", numbers={})


def _caller(callbacks: Callbacks) -> CallbackCaller:
    run: Any = _Run()
    return CallbackCaller(callbacks, run)


def test_everything_is_told_once_in_its_order() -> None:
    told: list[Any] = []
    caller = _caller(Callbacks(on_step=told.append, on_evaluation=told.append, on_trial_end=told.append))
    evaluated = [Evaluated(trial_id=0, step=n, validation_loss=2.0 / n, metrics={}, num_tokens=8) for n in (1, 2)]
    new_best = _decision(1, DecisionKind.NEW_BEST, Reason("improved"))
    caller.took([_step(1), evaluated[0]], [new_best])
    caller.took([_step(2), evaluated[1]], [_decision(2, DecisionKind.FINISH, COMPLETED)])
    assert caller.has_news
    caller.deliver()
    caller.deliver()
    assert [type(report).__name__ for report in told] == [
        "StepReport", "EvaluationReport", "StepReport", "EvaluationReport", "TrialEndReport"
    ]  # fmt: skip
    assert [report.is_best for report in told if hasattr(report, "is_best")] == [True, False]
    assert (told[-1].status, told[-1].validation_loss) == ("completed", 2.0), "that of the checkpoint that competes"
    assert not caller.has_news


def test_a_trial_that_was_never_evaluated_ends_without_a_loss() -> None:
    told: list[Any] = []
    caller = _caller(Callbacks(on_trial_end=told.append))
    caller.took([], [_decision(2, DecisionKind.STOP, Reason("overfitting"))])
    caller.deliver()
    assert (told[0].status, told[0].reason, math.isnan(told[0].validation_loss)) == ("stopped", "overfitting", True)


def test_an_error_and_an_answer_are_told_with_their_place() -> None:
    def fails(report: Any) -> None:
        raise ZeroDivisionError("no")

    misspelt = "no attribute 'stop_trail'. Did you mean stop_trial?"
    cases = (
        (fails, "ZeroDivisionError: no"),
        (lambda report: True, "returned True"),
        (lambda report: report.stop_trail(), misspelt),
        (lambda report: report.zzz, "It has add_trial, clone_trial, "),
    )
    for callback, told in cases:
        caller = _caller(Callbacks(on_step=callback))
        caller.took([_step(3)], [])
        with pytest.raises(CallbackError, match="on_step") as caught:
            caller.deliver()
        assert told in str(caught.value)
        assert "trial 0, step 3" in str(caught.value)
