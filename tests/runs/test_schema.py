"""A new database has this version of the tables; one of another version is refused and left as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError
from cohort.core.events import ReadAnswer, StepDone
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedEvent
from cohort.runs.schema import EARLIER_VERSION, SCHEMA_VERSION, STEP_COLUMNS
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER, USER
from tests.runs.log_entries import new_trials


def _version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("version", [EARLIER_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_database_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "run.db"
    RunStore.create(path).close()
    assert _version(path) == SCHEMA_VERSION
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for opened in (RunReader.open, RunStore.resume):
        with pytest.raises(RunStateError, match=f"schema version {version}; this release reads {SCHEMA_VERSION}"):
            opened(path)
    assert _version(path) == version


def test_a_database_of_the_form_before_is_read_as_it_is_and_brought_up_by_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    step = StepDone(trial_id=0, step=1, loss=1.5, grad_norm=1.0, learning_rate=1e-3, num_tokens=9)
    with closing(RunStore.create(path)) as store:
        store.add_trials(new_trials(1))
        store.append([step], [])
    with closing(sqlite3.connect(path)) as connection:
        for name in STEP_COLUMNS:
            connection.execute(f"ALTER TABLE steps DROP COLUMN {name}")
        connection.execute(f"PRAGMA user_version = {EARLIER_VERSION}")
    for _ in range(2):
        with RunReader.open(path) as reader:
            (found,) = reader.log.steps()
            assert (found.loss, found.metrics, found.answers) == (1.5, {}, ())
    assert _version(path) == EARLIER_VERSION
    answered = replace(step, step=2, metrics={"reward": 0.5}, answers=(ReadAnswer(prompt="a", text="b", reward=0.5),))
    with closing(RunStore.resume(path)) as store:
        store.append([answered], [])
        events = [entry.event for entry in store.reader.log.entries() if isinstance(entry, LoggedEvent)]
    assert events == [step, answered]
    assert _version(path) == SCHEMA_VERSION


def test_several_decisions_of_one_kind_after_one_step_are_kept(tmp_path: Path) -> None:
    with closing(RunStore.create(tmp_path / "run.db", clock=ManualClock())) as store:
        store.add_trials(new_trials(1))
        asked = [
            Decision(
                trial_id=0, step=6, kind=DecisionKind.STOP, reason=STOPPED_BY_USER, rule=USER, numbers={"number": n}
            )
            for n in (1, 2)
        ]
        store.append([], [asked[0], asked[0], asked[1]])
        assert [entry.decision for entry in store.reader.log.decisions()] == asked


def test_a_new_run_shows_nothing_of_the_one_before_that_a_reader_still_has(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    before = RunStore.create(path)
    before.add_trials(new_trials(2))
    reader = RunReader.open(path)
    before.close()
    # the last to close it takes the log away with it, and that is the reader now
    path.unlink()
    assert Path(f"{path}-wal").exists()
    with closing(RunStore.create(path)) as store:
        assert store.reader.trials() == []
        store.add_trials(new_trials(2))
    reader.close()
