"""What a report may be asked for, and the values of new trials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cohort.core.errors import InputError
from cohort.engine.callbacks.callback_reports import StepReport
from cohort.runs.requests.trial_requests import TrialRequest


class _Run:
    def __init__(self) -> None:
        self.asked: list[TrialRequest] = []

    def ask(self, request: TrialRequest) -> None:
        self.asked.append(request)


def _report(run: _Run) -> StepReport:
    known: dict[str, Any] = {"trial_id": 0, "parameters": {}, "step": 1, "planned_steps": 2, "_run": run}
    return StepReport(**known, _callback="on_step", loss=1.0, grad_norm=1.0, learning_rate=1e-3, num_tokens=8)


def test_values_of_a_new_trial_may_be_numpys() -> None:
    run = _Run()
    _report(run).clone_trial({"r": np.int64(4), "learning_rate": np.float64(0.5)})
    assert run.asked[0].values == {"r": 4, "learning_rate": 0.5}
    assert type(run.asked[0].values["r"]) is int


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 2], r"values: found \[1, 2\]; allowed: a dict"),
        ({"learning_rte": 1e-3}, r"the unknown name 'learning_rte'; .*Did you mean learning_rate\?"),
        ({3: 4}, "the unknown name 3"),
    ],
)
def test_values_that_name_no_hyperparameter_are_errors_at_once(values: Any, told: str) -> None:
    run = _Run()
    for ask in (_report(run).clone_trial, _report(run).add_trial):
        with pytest.raises(InputError, match=told):
            ask(values)
    assert not run.asked
