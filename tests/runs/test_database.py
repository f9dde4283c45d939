"""Opening a database: damage is named, and a full disk rolls back."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cohort.core.errors import RunStateError, StorageFullError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from tests.runs.log_entries import step_done


def test_a_finished_run_can_be_read_from_a_folder_without_write_permission(tmp_path: Path, store: RunStore) -> None:
    store.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.db"]
    with RunReader.open(store.path) as reader:
        assert len(reader.trials()) == 3


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


def _without_a_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE evaluations")
    connection.close()


@pytest.mark.parametrize(
    "damage", [_truncated, _overwritten, _text, _foreign, _absent, _later_version, _without_a_table]
)
def test_a_damaged_database_is_named(store: RunStore, damage: object) -> None:
    store.append([step_done(0, step) for step in range(1, 400)])
    store.close()
    assert callable(damage)
    damage(store.path)
    with pytest.raises(RunStateError, match=r"run\.db"):
        RunStore.resume(store.path)


@pytest.mark.parametrize("denied", [sqlite3.SQLITE_CREATE_TEMP_VIEW, sqlite3.SQLITE_DROP_TEMP_VIEW])
def test_an_error_while_rows_are_hidden_is_named(store: RunStore, denied: int) -> None:
    store.record_checkpoint("checkpoint-1", checksum="aa")
    store.append([step_done(0, 1)])
    with RunReader.open(store.path) as reader, reader.snapshot():
        connection = reader._database.connection
        # as a run of the form before has it
        connection.execute("CREATE TEMP VIEW steps AS SELECT * FROM main.steps")
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action == denied else sqlite3.SQLITE_OK)
        with pytest.raises(RunStateError, match=r"run\.db"):
            reader.go_back_to_checkpoint()


def test_a_full_disk_is_named_and_rolls_back(store: RunStore) -> None:
    store.append([step_done(0, 1)])
    pages = store._database.connection.execute("PRAGMA page_count").fetchone()[0]
    store._database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFullError, match=r"run\.db"):
        store.append([step_done(1, step) for step in range(1, 5000)])
    store._database.connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert store.reader.log.steps(1) == []
    store.append([step_done(1, 1)])
    assert len(store.reader.log.steps()) == 2


def test_a_missing_database_says_what_brings_it_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)

    def told() -> str:
        with pytest.raises(RunStateError) as caught:
            RunReader.open(directory.database)
        return str(caught.value)

    assert told().endswith("there is no run here")
    directory.task_file.touch()
    with directory.lock():
        assert "the run is being started by process" in told()
    assert told().endswith(f"the run ended before its first step, and `cohort resume {tmp_path}` begins it again")
    directory.checkpoints.mkdir()
    (directory.checkpoints / "000000001.json").touch()
    assert told().endswith(f"`cohort resume {tmp_path}` puts the copy of the last checkpoint in its place")
