"""Runs of schema version 1 are read and continued by this one, and nothing of them is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated
from cohort.core.memory_records import GradientCheckpointing, PassKind
from cohort.report import render_report
from cohort.runs.facts import Activity, RunState
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedEvent
from cohort.runs.results.results import read_results
from cohort.runs.schema import READABLE_VERSIONS, SCHEMA_VERSION
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER, USER
from cohort.tuning.trial_status import TrialStatus
from tests.runs.log_entries import evaluated, new_trials, step_done

HINT = "Remove copies that are not meant."


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run that schema version 1 wrote."""
    path = tmp_path / "run.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(__file__).with_name("version_1_run.sql").read_text(encoding="utf-8"))
    assert _version(path) == 1
    return path


def _version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_every_fact_of_the_version_before_is_read(old_run: Path) -> None:
    with RunReader.open(old_run) as reader:
        facts = reader.facts()
    assert (facts.state, facts.best_trial_id, facts.are_results_written) == (RunState.DONE, 3, True)
    assert facts.base_metrics == {"loss": 5.457680797576904}
    assert facts.seconds[Activity.TRAIN] == 0.12399322500004928
    assert facts.places.run_directory == "/data/sums/finished"
    assert facts.places.database_file is not None
    assert facts.places.database_file[0] == "/data/sums/finished/run.db"
    assert facts.task.document is not None
    assert facts.task.document["search"]["space"] == {"learning_rate": [0.001, 0.01], "r": [2, 4]}
    assert (facts.machine.device, facts.machine.threads) == ("cpu (AMD EPYC)", 1)
    assert facts.inputs.train_input is not None
    assert facts.inputs.train_input.num_rows_read == 25
    assert facts.inputs.data_problems is not None
    assert [problem.hint for problem in facts.inputs.data_problems] == [HINT]
    assert (facts.sizes.num_slots, facts.sizes.rank_rows, facts.sizes.token_budget) == (4, 64, 2048)
    assert facts.sizes.gradient_checkpointing is GradientCheckpointing.AUTO
    assert facts.passes.token_budgets == {PassKind.TRAIN: 2048, PassKind.EVALUATE: 4096}


def test_results_and_report_of_the_version_before_are_made(old_run: Path) -> None:
    with RunReader.open(old_run) as reader:
        results, report = read_results(reader), render_report(reader)
    assert [entry.trial.trial_id for entry in results.ranked] == [3, 2, 1, 0]
    assert all(entry.trial.status is TrialStatus.COMPLETED for entry in results.ranked)
    assert results.best == results.ranked[0].trial
    assert HINT in report


def test_a_resume_brings_the_record_to_this_version_and_keeps_every_fact(old_run: Path) -> None:
    with RunReader.open(old_run) as reader:
        before, trials, log = reader.facts(), reader.trials(), reader.log.entries()
    store = RunStore.resume(old_run, clock=ManualClock())
    assert store.reader.facts() == before
    assert (store.reader.trials(), store.reader.log.entries()) == (trials, log)
    store.close()
    assert _version(old_run) == SCHEMA_VERSION
    with closing(sqlite3.connect(old_run)) as connection:
        (problems,) = connection.execute("SELECT value FROM facts WHERE key = 'data_problems'").fetchone()
    assert '"hint"' in problems
    assert '"mend"' not in problems


def test_several_decisions_of_one_kind_after_one_step_are_kept(old_run: Path) -> None:
    store = RunStore.resume(old_run, clock=ManualClock())
    before = len(store.reader.log.decisions())
    asked = [
        Decision(trial_id=0, step=6, kind=DecisionKind.STOP, reason=STOPPED_BY_USER, rule=USER, numbers={"number": n})
        for n in (1, 2)
    ]
    store.append([], [asked[0], asked[0], asked[1]])
    assert [entry.decision for entry in store.reader.log.decisions()[before:]] == asked
    store.close()


def test_a_new_database_has_this_version(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run.db").close()
    assert _version(tmp_path / "run.db") == SCHEMA_VERSION == max(READABLE_VERSIONS)


def test_a_run_of_version_3_is_read_as_it_is_and_resumed_with_this_one(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with closing(RunStore.create(path)) as store:
        store.add_trials(new_trials(1))
        store.append([step_done(0, 1), evaluated(0, 1, 2.0)])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("ALTER TABLE evaluations DROP COLUMN row_values; PRAGMA user_version = 3")
    with RunReader.open(path) as reader:
        _, before = reader.log.entries()
    assert isinstance(before, LoggedEvent)
    assert before.event == evaluated(0, 1, 2.0)
    with closing(RunStore.resume(path, clock=ManualClock())) as store:
        store.append([step_done(0, 2), replace(evaluated(0, 2, 1.5), row_values={"loss": (1.0, 0.5)})])
        events = [entry.event for entry in store.reader.log.entries() if isinstance(entry, LoggedEvent)]
        found = [event.row_values for event in events if isinstance(event, Evaluated)]
        assert found == [{}, {"loss": (1.0, 0.5)}]
    assert _version(path) == SCHEMA_VERSION
