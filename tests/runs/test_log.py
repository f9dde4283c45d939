"""The log: what is written is read back exactly, once."""

from __future__ import annotations

import math
from dataclasses import replace

from cohort.core.events import TrialEvent, TrialFailed
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.store import RunStore
from cohort.tuning.decisions import DecisionKind, Reason
from tests.runs.log_entries import decided, evaluated, step_done


def test_what_is_written_is_read_back_exactly(store: RunStore) -> None:
    stop = decided(1, 2, DecisionKind.STOP, Reason("non-finite"), loss=math.nan, limit=math.inf, third=1 / 3)
    events: list[TrialEvent] = [
        step_done(0, 1, 0.1),
        step_done(1, 1, math.inf),
        step_done(1, 2, math.nan),
        evaluated(0, 1, 2.5, exact_match=0.25),
    ]
    failed = TrialFailed(trial_id=2, step=0, message="row 3 is gone")
    store.append([*events, failed], [stop])
    log = store.reader.log.entries()
    assert [entry.position for entry in log] == [4, 5, 6, 7, 8, 9]
    assert [entry.event for entry in log if isinstance(entry, LoggedEvent)][:2] == events[:2]
    assert [entry.event for entry in log if isinstance(entry, LoggedEvent)][3:] == [events[3], failed]
    read = log[-1]
    assert isinstance(read, LoggedDecision)
    assert read.decision.numbers["third"] == 1 / 3
    assert read.decision.numbers["limit"] == math.inf
    assert math.isnan(read.decision.numbers["loss"])
    assert math.isnan(store.reader.log.steps(1)[1].loss)
    assert store.reader.trial(0).seed == 2**64 - 1
    assert store.reader.trial(0).parameters == {"r": 8, "learning_rate": 1e-5}


def test_appending_again_changes_nothing(store: RunStore) -> None:
    keep = decided(0, 1, DecisionKind.KEEP, Reason("selected"))
    store.append([step_done(0, 1, 1.0)], [keep])
    store.append([step_done(0, 1, 99.0), step_done(0, 2, 2.0)], [keep])
    assert [step.loss for step in store.reader.log.steps(0)] == [1.0, 2.0]
    assert len(store.reader.log.decisions()) == 1


def test_row_values_come_back_with_the_log_and_not_with_the_evaluations_that_tables_read(store: RunStore) -> None:
    # single precision, as trials are compared by: a resume has to compare the same numbers
    rows = {"loss": (1.5, math.inf, -0.25), "reward_accuracy": (0.0, 1.0)}
    event = replace(evaluated(0, 1, 2.5), row_values=rows)
    store.append([event, evaluated(0, 2, 2.0)])
    events = [entry.event for entry in store.reader.log.entries() if isinstance(entry, LoggedEvent)]
    assert events == [event, evaluated(0, 2, 2.0)]
    assert [record.row_values for record in store.reader.log.evaluations()] == [{}, {}]
