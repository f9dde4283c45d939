"""The run store: order, idempotence, truncation, the slot timeline, damage, and what a tick costs."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RunStateError, StorageFullError
from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.runs.facts import Activity, MachineFacts
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision, LoggedEvent, NewTrial, TrialStatus
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from tests.runs.synthetic_run import new_best


def _trials(count: int) -> list[NewTrial]:
    return [
        NewTrial(trial_id=n, parameters={"r": 8, "learning_rate": 1e-5}, planned_steps=10, seed=2**64 - 1 - n)
        for n in range(count)
    ]


def _step(trial_id: int, step: int, loss: float = 1.0) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)


def _evaluated(trial_id: int, step: int, loss: float, **metrics: float) -> Evaluated:
    return Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics=metrics, num_tokens=40)


def _decision(trial_id: int, step: int, kind: DecisionKind, reason: Reason, **numbers: float) -> Decision:
    return Decision(trial_id=trial_id, step=step, kind=kind, reason=reason, rule="patterns", numbers=numbers)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> RunStore:
    store = RunStore.create(tmp_path / "run.db", clock=clock)
    store.add_trials(_trials(3))
    return store


def test_what_is_written_is_read_back_exactly(store: RunStore) -> None:
    stop = _decision(1, 2, DecisionKind.STOP, Reason("non-finite"), loss=math.nan, limit=math.inf, third=1 / 3)
    events: list[TrialEvent] = [
        _step(0, 1, 0.1),
        _step(1, 1, math.inf),
        _step(1, 2, math.nan),
        _evaluated(0, 1, 2.5, exact_match=0.25),
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
    keep = _decision(0, 1, DecisionKind.KEEP, Reason("selected"))
    store.append([_step(0, 1, 1.0)], [keep])
    store.append([_step(0, 1, 99.0), _step(0, 2, 2.0)], [keep])
    assert [step.loss for step in store.reader.log.steps(0)] == [1.0, 2.0]
    assert len(store.reader.log.decisions()) == 1


def test_a_position_is_never_given_out_twice_across_a_checkpoint(store: RunStore) -> None:
    store.append([_step(0, 1)])
    store.append([_step(0, 1)])
    checkpoint = store.record_checkpoint("checkpoint-1", checksum="aa")
    store.close()
    again = RunStore.resume(store.path)
    again.truncate_after(checkpoint.position)
    assert again.append([_step(0, 2)]) > checkpoint.position
    again.truncate_after(checkpoint.position)
    assert [step.step for step in again.reader.log.steps(0)] == [1]


def test_a_tick_is_all_or_nothing(store: RunStore) -> None:
    before = store.reader.log.last_position()
    with pytest.raises(sqlite3.IntegrityError):
        store.append([_step(0, 1), _step(77, 1)])
    assert store.reader.log.last_position() == before
    assert store.reader.log.steps() == []
    store.append([_step(0, 1)])
    assert store.reader.log.last_position() == before + 1


def test_status_follows_from_decisions_and_residency(store: RunStore) -> None:
    def statuses() -> list[TrialStatus]:
        return [trial.status for trial in store.reader.trials()]

    assert statuses() == [TrialStatus.WAITING] * 3
    for trial in range(3):
        store.trial_entered(trial, slot=trial)
    store.append([_step(trial, 1) for trial in range(3)])
    assert statuses() == [TrialStatus.RUNNING] * 3
    store.append([], [_decision(0, 1, DecisionKind.PARK, Reason("warmed up"))])
    store.trial_left(0)
    store.append([], [_decision(1, 1, DecisionKind.STOP, Reason("diverging"))])
    store.append([], [new_best(_evaluated(2, 1, 1.0))])
    assert statuses() == [TrialStatus.PARKED, TrialStatus.STOPPED, TrialStatus.RUNNING]
    assert store.reader.trial(1).reason == "diverging"
    store.append([], [_decision(2, 2, DecisionKind.FINISH, Reason("completed"))])
    failed = Decision(
        trial_id=0, step=3, kind=DecisionKind.STOP, reason=Reason("failed"), rule="study", message="broken"
    )
    store.append([], [failed])
    assert statuses() == [TrialStatus.FAILED, TrialStatus.STOPPED, TrialStatus.COMPLETED]
    assert store.reader.trial(0).message == "broken"


def test_the_best_evaluation_is_the_last_that_the_study_called_so(tmp_path: Path, store: RunStore) -> None:
    found = [_evaluated(0, step, loss) for step, loss in ((1, 1.5), (2, 1.25), (3, 1.0))]
    # the third is less, but nobody decided it: the record follows the study
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
    other.add_trials(_trials(1))
    first, second = _evaluated(0, 1, 1.0, exact_match=0.2), _evaluated(0, 2, 2.0, exact_match=0.6)
    other.append(
        [first, second, _evaluated(0, 3, 0.5)], [new_best(first, metric=metric), new_best(second, metric=metric)]
    )
    best = other.reader.trial(0)
    assert (best.best_step, best.best_value, best.best_loss) == (2, 0.6, 2.0)


def test_truncation_returns_what_it_drops_and_keeps_the_rest(store: RunStore, clock: ManualClock) -> None:
    store.trial_entered(0, slot=0)
    position = store.append([_step(0, 1)])
    clock.advance(5)
    store.record_checkpoint("checkpoint-1", checksum="aa")
    park = _decision(0, 2, DecisionKind.PARK, Reason("warmed up"), loss=1.0)
    store.append([_step(0, 2), _evaluated(0, 2, 1.0)], [park])
    store.trial_left(0)
    store.trial_entered(1, slot=0)
    store.add_trials([NewTrial(trial_id=9, parameters={}, planned_steps=1, seed=1)])
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
    store.append([_step(0, 2)])
    assert [step.step for step in store.reader.log.steps(0)] == [1, 2]


def test_run_time_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    first = RunStore.create(path, clock=(clock := ManualClock()))
    first.add_trials(_trials(1))
    first.trial_entered(0, slot=2)
    clock.advance(10)
    first.append([_step(0, 1)])
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


def test_a_reader_sees_the_run_while_it_is_written(store: RunStore) -> None:
    with RunReader.open(store.path) as reader:
        assert reader.log.last_position() == 3
        store.append([_step(0, 1)])
        assert reader.log.last_position() == 4
        with pytest.raises(RunStateError, match=str(store.path)):
            reader._database.one("DELETE FROM steps RETURNING 1")


def test_a_snapshot_stands_still_while_another_process_writes(store: RunStore) -> None:
    with RunReader.open(store.path) as reader:
        with reader.snapshot(), reader.snapshot():
            assert reader.log.last_position() == 3
            store.append([_step(0, 1)])
            assert reader.log.last_position() == 3
            assert reader.log.steps() == []
        assert reader.log.last_position() == 4


def test_a_finished_run_can_be_read_from_a_folder_without_write_permission(tmp_path: Path, store: RunStore) -> None:
    store.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.db"]
    with RunReader.open(store.path) as reader:
        assert len(reader.trials()) == 3


def test_create_refuses_a_database_that_is_there(store: RunStore) -> None:
    with pytest.raises(RunStateError, match="already exists"):
        RunStore.create(store.path)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwritten(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 8] = b"\xff" * 4096 * 7
    path.write_bytes(bytes(content))


def _text(path: Path) -> None:
    path.write_text("not a database at all, but long enough to look like one " * 100)


def _foreign(path: Path) -> None:
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


def _absent(path: Path) -> None:
    path.unlink()


def _later_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize("damage", [_truncated, _overwritten, _text, _foreign, _absent, _later_version])
def test_a_damaged_database_is_named(store: RunStore, damage: object) -> None:
    store.append([_step(0, step) for step in range(1, 400)])
    store.close()
    assert callable(damage)
    damage(store.path)
    with pytest.raises(RunStateError, match=r"run\.db"):
        RunStore.resume(store.path)


def test_a_full_disk_is_named_and_rolls_back(store: RunStore) -> None:
    store.append([_step(0, 1)])
    pages = store._database.connection.execute("PRAGMA page_count").fetchone()[0]
    store._database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFullError, match=r"run\.db"):
        store.append([_step(1, step) for step in range(1, 5000)])
    store._database.connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert store.reader.log.steps(1) == []
    store.append([_step(1, 1)])
    assert len(store.reader.log.steps()) == 2


KILLED = """
import os, sys
from pathlib import Path
from cohort.core.events import StepDone
from cohort.runs.store import RunStore
from cohort.runs.records import NewTrial
store = RunStore.create(Path(sys.argv[1]))
store.add_trials([NewTrial(trial_id=0, parameters={}, planned_steps=1000, seed=0)])
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
    store.add_trials([NewTrial(trial_id=n, parameters={}, planned_steps=1000, seed=0) for n in range(8)])
    statements: list[str] = []
    store._database.connection.set_trace_callback(statements.append)
    for step in range(1, 31):
        statements.clear()
        store.append([_step(trial, step) for trial in range(8)])
        verbs = [text.split()[0] for text in statements]
        assert verbs == ["BEGIN", *["INSERT"] * 8, "COMMIT"]
