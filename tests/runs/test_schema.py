"""A new database has this version of the tables; one of another version is refused and left as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError
from cohort.runs.reader import RunReader
from cohort.runs.schema import SCHEMA_VERSION
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER, USER
from tests.runs.log_entries import new_trials


def _version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
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
