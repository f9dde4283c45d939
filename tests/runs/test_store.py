"""The run store: order, idempotence, truncation, the slot timeline, damage, and what a tick costs."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError
from cohort.runs.fact_groups import MachineFacts
from cohort.runs.facts import Activity, RunFacts
from cohort.runs.records import LoggedDecision, LoggedEvent, TrialRecord
from cohort.runs.store import FactUpdates, RunStore
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.trial_status import TrialStatus
from tests.runs.log_entries import decided, evaluated, new_trials, step_done


def test_a_position_is_never_given_out_twice_across_a_checkpoint(store: RunStore) -> None:
    store.append([step_done(0, 1)])
    store.append([step_done(0, 1)])
    checkpoint = store.record_checkpoint("checkpoint-1", checksum="aa")
    store.close()
    again = RunStore.resume(store.path)
    again.truncate_after(checkpoint.position)
    assert again.append([step_done(0, 2)]) > checkpoint.position
    again.truncate_after(checkpoint.position)
    assert [step.step for step in again.reader.log.steps(0)] == [1]


def test_a_tick_is_all_or_nothing(store: RunStore) -> None:
    before = store.reader.log.last_position()
    with pytest.raises(sqlite3.IntegrityError):
        store.append([step_done(0, 1), step_done(77, 1)])
    assert store.reader.log.last_position() == before
    assert store.reader.log.steps() == []
    store.append([step_done(0, 1)])
    assert store.reader.log.last_position() == before + 1


def test_truncation_returns_what_it_drops_and_keeps_the_rest(store: RunStore, clock: ManualClock) -> None:
    store.trial_entered(0, slot=0)
    position = store.append([step_done(0, 1)])
    clock.advance(5)
    store.record_checkpoint("checkpoint-1", checksum="aa")
    park = decided(0, 2, DecisionKind.PARK, Reason("warmed up"), loss=1.0)
    store.append([step_done(0, 2), evaluated(0, 2, 1.0)], [park])
    store.trial_left(0)
    store.trial_entered(1, slot=0)
    store.add_trials([TrialRecord(trial_id=9, parameters={}, planned_steps=1, seed=1)])
    store.trial_entered(9, slot=1)
    store.record_checkpoint("checkpoint-2", checksum="bb")
    clock.advance(7)
    dropped = store.truncate_after(position)
    assert [type(entry) for entry in dropped] == [LoggedEvent, LoggedEvent, LoggedDecision]
    assert isinstance(dropped[-1], LoggedDecision)
    assert dropped[-1].decision == park
    assert store.position == store.reader.log.last_position() == position
    assert [trial.trial_id for trial in store.reader.trials()] == [0, 1, 2]
    assert [record.file_name for record in store.reader.checkpoints()] == ["checkpoint-1"]
    assert [(stay.trial_id, stay.stop_position) for stay in store.reader.log.residencies()] == [(0, position)]
    assert store.seconds == 12.0
    store.append([step_done(0, 2)])
    assert [step.step for step in store.reader.log.steps(0)] == [1, 2]


def test_run_time_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = RunStore.create(path, clock=(clock := ManualClock()))
    first.add_trials(new_trials(1))
    first.trial_entered(0, slot=2)
    clock.advance(10)
    first.append([step_done(0, 1)])
    clock.advance(3)
    first.close()
    first.close()
    second = RunStore.resume(path, clock=ManualClock())
    assert second.seconds == 13.0
    (stay,) = second.reader.log.residencies()
    assert (stay.slot, stay.start_seconds, stay.stop_seconds) == (2, 0.0, 13.0)
    assert second.reader.trial(0).status is TrialStatus.PARKED


def test_facts_are_replaced_and_added_up(store: RunStore) -> None:
    store.set_facts(task_name="sums", machine=MachineFacts(threads=2, device="cpu"))
    store.set_facts(machine=MachineFacts(threads=4, versions={"torch": "2.13"}))
    store.add_seconds({Activity.TRAIN: 1.5})
    store.add_seconds({Activity.TRAIN: 2.0, Activity.LOAD: 1.0})
    facts = store.reader.facts()
    assert facts.task_name == "sums"
    assert facts.machine == MachineFacts(threads=4, versions={"torch": "2.13"}), "a group is replaced as a whole"
    assert facts.seconds == {Activity.TRAIN: 3.5, Activity.LOAD: 1.0}


def test_create_refuses_a_database_that_is_there(store: RunStore) -> None:
    with pytest.raises(RunStateError, match="already exists"):
        RunStore.create(store.path)


KILLED = """
import os, sys
from pathlib import Path
from cohort.core.events import StepDone
from cohort.runs.store import RunStore
from cohort.runs.records import TrialRecord
store = RunStore.create(Path(sys.argv[1]))
store.add_trials([TrialRecord(trial_id=0, parameters={}, planned_steps=1000, seed=0)])
for step in range(1, 201):
    store.append([StepDone(trial_id=0, step=step, loss=1.0, grad_norm=1.0, learning_rate=1.0, num_tokens=1)])
store._database.connection.execute("BEGIN")
store._database.connection.execute("DELETE FROM steps")
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_loses_only_its_open_transaction(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    store = RunStore.resume(path)
    assert len(store.reader.log.steps(0)) == 200
    assert store.position == 201


def test_a_tick_is_one_transaction_however_long_the_record_is(tmp_path: Path) -> None:
    """What a tick costs in seconds is measured in benchmarks/steps/checkpoint_overhead.py."""
    store = RunStore.create(tmp_path / "run.db")
    store.add_trials([TrialRecord(trial_id=n, parameters={}, planned_steps=1000, seed=0) for n in range(8)])
    statements: list[str] = []
    store._database.connection.set_trace_callback(statements.append)
    for step in range(1, 31):
        statements.clear()
        store.append([step_done(trial, step) for trial in range(8)])
        verbs = [text.split()[0] for text in statements]
        # for each step its row, and what its trigger does: SQLite names the trigger and the insertion into the sums
        assert verbs == ["BEGIN", *["INSERT"] * 3 * 8, "COMMIT"]


def test_every_fact_can_be_set_and_read() -> None:
    assert set(FactUpdates.__annotations__) == {entry.name for entry in fields(RunFacts)}
