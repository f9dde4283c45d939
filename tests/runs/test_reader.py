"""Reading a run: where each trial stands, also while another process writes."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus
from tests.runs.log_entries import decided, evaluated, new_trials, step_done
from tests.runs.small_run import write_small_run
from tests.runs.synthetic_run import new_best


def test_status_follows_from_decisions_and_residency(store: RunStore) -> None:
    def statuses() -> list[TrialStatus]:
        return [trial.status for trial in store.reader.trials()]

    assert statuses() == [TrialStatus.WAITING] * 3
    for trial in range(3):
        store.trial_entered(trial, slot=trial)
    store.append([step_done(trial, 1) for trial in range(3)])
    assert statuses() == [TrialStatus.RUNNING] * 3
    store.append([], [decided(0, 1, DecisionKind.PARK, Reason("warmed up"))])
    store.trial_left(0)
    store.append([], [decided(1, 1, DecisionKind.STOP, Reason("diverging"))])
    store.append([], [new_best(evaluated(2, 1, 1.0))])
    assert statuses() == [TrialStatus.PARKED, TrialStatus.STOPPED, TrialStatus.RUNNING]
    assert store.reader.trial(1).reason == "diverging"
    store.append([], [decided(2, 2, DecisionKind.FINISH, Reason("completed"))])
    failed = Decision(
        trial_id=0, step=3, kind=DecisionKind.STOP, reason=Reason("failed"), rule="study", message="broken"
    )
    store.append([], [failed])
    assert statuses() == [TrialStatus.FAILED, TrialStatus.STOPPED, TrialStatus.COMPLETED]
    assert store.reader.trial(0).message == "broken"


def test_the_best_evaluation_is_the_last_that_the_study_called_so(tmp_path: Path, store: RunStore) -> None:
    found = [evaluated(0, step, loss) for step, loss in ((1, 1.5), (2, 1.25), (3, 1.0))]
    # the third is less, but no decision says so: the record follows the study
    store.append(found, [new_best(found[0]), new_best(found[1])])
    assert (store.reader.trial(0).best_step, store.reader.trial(0).best_value, store.reader.trial(0).best_loss) == (
        2,
        1.25,
        1.25,
    )
    assert store.reader.trial(0).evaluation_tokens == 40 * len(found)
    assert store.reader.trial(1).best_step is None

    metric = ObjectiveMetric(name="exact_match", maximize=True)
    other = RunStore.create(tmp_path / "other.db", metric=metric, clock=ManualClock())
    other.add_trials(new_trials(1))
    first, second = evaluated(0, 1, 1.0, exact_match=0.2), evaluated(0, 2, 2.0, exact_match=0.6)
    other.append(
        [first, second, evaluated(0, 3, 0.5)], [new_best(first, metric=metric), new_best(second, metric=metric)]
    )
    best = other.reader.trial(0)
    assert (best.best_step, best.best_value, best.best_loss) == (2, 0.6, 2.0)


def test_a_reader_sees_the_run_while_it_is_written(store: RunStore) -> None:
    with RunReader.open(store.path) as reader:
        assert reader.log.last_position() == 3
        store.append([step_done(0, 1)])
        assert reader.log.last_position() == 4
        with pytest.raises(RunStateError, match=str(store.path)):
            reader._database.one("DELETE FROM steps RETURNING 1")


def test_a_snapshot_stands_still_while_another_process_writes(store: RunStore) -> None:
    with RunReader.open(store.path) as reader:
        with reader.snapshot(), reader.snapshot():
            assert reader.log.last_position() == 3
            store.append([step_done(0, 1)])
            assert reader.log.last_position() == 3
            assert reader.log.steps() == []
        assert reader.log.last_position() == 4


def test_what_steps_come_to_is_known_without_reading_them_and_follows_a_resume(tmp_path: Path, store: RunStore) -> None:
    path = tmp_path / "run.db"
    position = store.append([step_done(0, 1), step_done(1, 1, loss=math.nan), step_done(0, 2, loss=0.5)])
    # an event that is sent again is one event
    store.append([step_done(0, 2, loss=0.5), step_done(0, 3, loss=0.25), step_done(2, 1)])

    def taken() -> dict[int, tuple[int, int, str]]:
        with RunReader.open(path) as reader:
            return {trial: (own.done, own.tokens, str(own.last_loss)) for trial, own in reader.steps_taken().items()}

    assert taken() == {0: (3, 300, "0.25"), 1: (1, 100, "nan"), 2: (1, 100, "1.0")}
    store.truncate_after(position)
    found = taken()
    assert found == {0: (2, 200, "0.5"), 1: (1, 100, "nan")}
    with closing(sqlite3.connect(path)) as connection:
        # a run of an earlier release keeps no sums: its steps are read
        connection.executescript("DROP TRIGGER step_added; DROP TRIGGER step_removed; DROP TABLE step_sums")
    assert taken() == found


def test_tokens_are_those_of_all_steps_and_evaluations(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "small")
    assert store.reader.num_tokens() == (4 * 100 + 100 + 50, 3 * 50)
    store.close()
