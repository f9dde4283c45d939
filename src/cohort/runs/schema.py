"""The run database: its tables, its version, and opening it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from cohort.core.durable_files import atomic_file, storage_full_named
from cohort.core.errors import RunStateError

__all__ = ["SCHEMA_VERSION", "create_tables", "database_errors_named", "open_database"]

# 2: data problems have a `hint` where version 1 wrote `mend`; nothing else differs
SCHEMA_VERSION = 2
_READABLE_VERSIONS = (1, SCHEMA_VERSION)
# "COHO": tells our databases from others
_APPLICATION_ID = 0x434F484F

# Each row of the log takes one position; the view `log` is the log itself. SQLite keeps NaN as NULL, so loss columns
# are nullable and NULL reads as NaN. Positions grow but may have gaps where a re-applied event was already there.
_TABLES = """
CREATE TABLE facts (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE trials (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL UNIQUE,
    parameters TEXT NOT NULL,
    planned_steps INTEGER NOT NULL,
    planned_tokens INTEGER,
    -- text: a 64-bit unsigned seed does not fit SQLite's integers
    seed TEXT NOT NULL
);

CREATE TABLE steps (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    loss REAL,
    grad_norm REAL,
    learning_rate REAL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (trial_id, step)
);

CREATE TABLE evaluations (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    validation_loss REAL,
    metrics TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (trial_id, step)
);

CREATE TABLE failures (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    message TEXT NOT NULL,
    UNIQUE (trial_id, step)
);

CREATE TABLE decisions (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    rule TEXT NOT NULL,
    numbers TEXT NOT NULL,
    message TEXT NOT NULL,
    UNIQUE (trial_id, step, kind)
);

CREATE TABLE residencies (
    residency_id INTEGER PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    slot INTEGER NOT NULL,
    start_position INTEGER NOT NULL,
    start_seconds REAL NOT NULL,
    stop_position INTEGER,
    stop_seconds REAL
);
CREATE INDEX residencies_open ON residencies (trial_id) WHERE stop_position IS NULL;

CREATE TABLE checkpoints (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    file_name TEXT NOT NULL,
    checksum TEXT NOT NULL
);

CREATE VIEW log AS
    SELECT position, seconds, trial_id, 0 AS step, 'trial' AS kind FROM trials
    UNION ALL SELECT position, seconds, trial_id, step, 'step' FROM steps
    UNION ALL SELECT position, seconds, trial_id, step, 'evaluation' FROM evaluations
    UNION ALL SELECT position, seconds, trial_id, step, 'failure' FROM failures
    UNION ALL SELECT position, seconds, trial_id, step, kind FROM decisions;
"""


# SQLite's words for a file that may well be whole
_OUT_OF_REACH = ("readonly database", "unable to open", "disk I/O error")


@contextmanager
def database_errors_named(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, with the file's name.

    Raises:
        StorageFullError: the disk is full; the last transaction was rolled back.
        RunStateError: the file is damaged, locked or unreadable.
    """
    with storage_full_named(path):
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            if "full" in str(error):
                raise
            if "locked" in str(error):
                raise RunStateError(f"{path} is locked by another process; wait until it ends or stop it") from error
            if any(text in str(error) for text in _OUT_OF_REACH):
                raise RunStateError(f"{path}: {error}; fix the disk or its permissions, then resume") from error
            raise RunStateError(
                f"{path} cannot be read or written as a run database ({error}); {_hint_for_damage(path)}"
            ) from error


def _hint_for_damage(path: Path) -> str:
    """Say what helps where the file itself is no database any more: checkpoints of a run hold copies of it."""
    if path.name == "run.db" and any((path.parent / "checkpoints").glob("*.json")):
        return f"`cohort resume {path.parent}` puts the copy of the last checkpoint in its place"
    return "restore it from a copy, or start the task anew in another directory"


def _settings(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    # a killed process loses nothing under NORMAL; a power cut may lose the last transactions, never the file. What a
    # checkpoint refers to is flushed by RunStore.record_checkpoint
    connection.execute("PRAGMA synchronous = NORMAL")


def create_tables(path: Path, *, facts: Mapping[str, str | None]) -> None:
    """Create the database of a new run with its first facts (rows by key), whole or not at all.

    Raises:
        RunStateError: there is a database already.
        StorageFullError: the disk is full.
    """
    if path.exists():
        raise RunStateError(f"{path} already exists; resume that run or choose another directory")
    with (
        atomic_file(path) as partial,
        database_errors_named(path),
        closing(sqlite3.connect(partial, isolation_level=None)) as connection,
    ):
        connection.executescript(
            f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; {_TABLES}"
        )
        connection.executemany("INSERT INTO facts (key, value) VALUES (?, ?)", list(facts.items()))


def open_database(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open an existing run database.

    Raises:
        RunStateError: the file is absent, damaged, not a run's, or of a version that this release cannot read.
    """
    if not path.is_file():
        raise RunStateError(f"{path} does not exist; there is no run here")
    with database_errors_named(path):
        connection = (
            _connect_read_only(path) if read_only else sqlite3.connect(path, isolation_level=None, timeout=30.0)
        )
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != _APPLICATION_ID:
            connection.close()
            raise RunStateError(f"{path} is a database, but not of a run; check the path")
        if version not in _READABLE_VERSIONS:
            connection.close()
            raise RunStateError(
                f"{path} has schema version {version}; this release reads up to {SCHEMA_VERSION}. "
                "Use the release that the run was started with"
            )
        if not read_only:
            _settings(connection)
            # finds torn pages now, not in the middle of the run; milliseconds for a run of ordinary size
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                connection.close()
                raise RunStateError(f"{path} is damaged ({verdict}); {_hint_for_damage(path)}")
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None, timeout=30.0)
    try:
        connection.execute("PRAGMA user_version").fetchone()
        return connection
    except sqlite3.OperationalError:
        connection.close()
        # a WAL database in a folder that we may not write to: readable as it is, as long as no log waits beside it
        waiting = Path(f"{path}-wal")
        if waiting.exists() and waiting.stat().st_size:
            raise
        return sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)
