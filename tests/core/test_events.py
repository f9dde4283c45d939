"""Events travel between processes and into the record: as they are, whatever their numbers."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed

STEP = StepDone(trial_id=3, step=7, loss=math.nan, grad_norm=math.inf, learning_rate=1e-4, num_tokens=128)
EVALUATED = Evaluated(trial_id=3, step=7, validation_loss=1.5, metrics={"exact_match": 0.25})
FAILED = TrialFailed(trial_id=3, step=7, message="a row without a trained token")


@pytest.mark.parametrize("event", [STEP, EVALUATED, FAILED], ids=lambda event: type(event).__name__)
def test_an_event_arrives_with_every_number(event: TrialEvent) -> None:
    arrived = pickle.loads(pickle.dumps(event))
    assert type(arrived) is type(event)
    # NaN equals nothing, so the exact text of each number is compared
    assert [repr(getattr(arrived, field.name)) for field in fields(event)] == [
        repr(getattr(event, field.name)) for field in fields(event)
    ]


def test_an_event_stays_what_it_was() -> None:
    event: Any = EVALUATED
    with pytest.raises(FrozenInstanceError):
        event.step = 8
    one, other = (Evaluated(trial_id=n, step=1, validation_loss=1.0) for n in range(2))
    assert one.metrics is not other.metrics, "metrics of one event must not reach another"


def test_events_with_the_same_numbers_are_told_apart_by_their_class() -> None:
    events: list[TrialEvent] = [STEP, EVALUATED, FAILED]
    assert [isinstance(event, StepDone) for event in events] == [True, False, False]
    same: Any = TrialFailed(trial_id=3, step=7, message=FAILED.message)
    assert same == FAILED
    assert same != EVALUATED
