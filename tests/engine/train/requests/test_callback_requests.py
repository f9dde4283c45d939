"""What callbacks ask becomes requests: once, with who and when, and only of trials that can still be stopped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.engine.train.requests.callback_requests import CallbackRequests
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest

NOW = datetime(2026, 3, 4, 5, 6, 7, 89_012, tzinfo=UTC)


class Asked:
    """Requests of a run with three trials, of which one has ended."""

    def __init__(self) -> None:
        self.requests: list[TrialRequest] = []
        self.ended = {2}
        run: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW))
        study: Any = SimpleNamespace(
            status=lambda trial_id: SimpleNamespace(is_final=trial_id in self.ended), trial_ids=(0, 1, 2)
        )
        planned: Any = SimpleNamespace(configuration={"r": 4}, spec=SimpleNamespace(num_steps=8))
        self.of = CallbackRequests(run, study=study, trials={0: planned}, submit=self.requests.append)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_trial_is_stopped_once_until_the_next_step(asked: Asked) -> None:
    asked.of.stop_trial(0, who="on_step: too slow")
    asked.of.stop_trial(0, who="on_evaluation")
    # an exit rule was faster
    asked.of.stop_trial(2, who="on_step")
    (request,) = asked.requests
    assert (request.kind, request.trial_id, request.who) == (RequestKind.STOP, 0, "on_step: too slow")
    assert request.at == "2026-03-04 05:06:07.089 UTC"
    asked.of.settle()
    # a person may have resumed it meanwhile
    asked.of.stop_trial(0, who="on_step")
    assert len(asked.requests) == 2


def test_a_run_is_stopped_by_stopping_what_trains_and_ending_the_search(asked: Asked) -> None:
    asked.of.stop_trial(1, who="on_step")
    asked.of.stop_run(who="on_evaluation: good enough")
    asked.of.stop_run(who="another")
    assert [(request.trial_id, request.who) for request in asked.requests] == [
        (1, "on_step"),
        (0, "on_evaluation: good enough"),
    ]
    assert asked.of.settle() == "the search ended with 3 trials: stopped by on_evaluation: good enough"
    assert asked.of.settle() is None


def test_other_requests_are_handed_on_with_their_time(asked: Asked) -> None:
    clone = TrialRequest(kind=RequestKind.CLONE, trial_id=0, values={"r": 8}, warm_start=True, who="on_step")
    for _ in range(2):
        asked.of.ask(clone)
    # two clones are two trials
    assert len(asked.requests) == 2
    assert asked.requests[0].at.startswith("2026-03-04")
    assert (asked.requests[0].values, asked.requests[0].warm_start) == ({"r": 8}, True)


def test_reports_get_a_copy_of_the_hyperparameters(asked: Asked) -> None:
    parameters: Mapping[str, Any] = asked.of.parameters_of(0)
    assert isinstance(parameters, dict)
    parameters["r"] = 64
    assert asked.of.parameters_of(0) == {"r": 4}
    assert asked.of.planned_steps_of(0) == 8
