"""The tables of a run database, its version, and making a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cohort.core.durable_files import atomic_file, storage_full_named
from cohort.core.errors import RunStateError

__all__ = [
    "APPLICATION_ID",
    "EARLIER_VERSION",
    "RANK_WORK",
    "RELATIONS",
    "SCHEMA_VERSION",
    "STEP_COLUMNS",
    "create_tables",
]

SCHEMA_VERSION = 5
# the form before: its steps lack what trials that train on their own answers report
EARLIER_VERSION = 4
STEP_COLUMNS: Mapping[str, str] = {"metrics": "'{}'", "answers": "'[]'"}
"""Columns of ``steps`` that the form before lacks, with the value of every step there."""
# "COHO": other programs' databases have another id
APPLICATION_ID = 0x434F484F

# Each row of the log takes one position; the view `log` is the log itself. Positions grow, with gaps where an event was
# sent again. SQLite keeps NaN as NULL: the columns of losses are nullable, and NULL is read as NaN.
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
    metrics TEXT NOT NULL DEFAULT '{}',
    answers TEXT NOT NULL DEFAULT '[]',
    UNIQUE (trial_id, step)
);

-- what the steps of each trial come to: a page or a terminal does not read millions of rows to say how far a run is
CREATE TABLE step_sums (
    trial_id INTEGER PRIMARY KEY,
    num_tokens INTEGER NOT NULL
);
CREATE TRIGGER step_added AFTER INSERT ON steps BEGIN
    INSERT INTO step_sums VALUES (new.trial_id, new.num_tokens)
        ON CONFLICT (trial_id) DO UPDATE SET num_tokens = num_tokens + excluded.num_tokens;
END;
CREATE TRIGGER step_removed AFTER DELETE ON steps BEGIN
    UPDATE step_sums SET num_tokens = num_tokens - old.num_tokens WHERE trial_id = old.trial_id;
END;

CREATE TABLE evaluations (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    trial_id INTEGER NOT NULL REFERENCES trials(trial_id),
    step INTEGER NOT NULL,
    validation_loss REAL,
    metrics TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    row_values TEXT NOT NULL DEFAULT '{}',
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
    -- the numbers of a person's decision hold its number
    UNIQUE (trial_id, step, kind, rule, numbers)
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

# made by the first run on several GPUs that has something to write in it
RANK_WORK = """
CREATE TABLE IF NOT EXISTS rank_work (
    rank INTEGER NOT NULL,
    start_seconds REAL NOT NULL,
    end_seconds REAL NOT NULL,
    train_seconds REAL NOT NULL,
    evaluate_seconds REAL NOT NULL,
    num_tokens INTEGER NOT NULL
);
"""

RELATIONS = frozenset(
    ("facts", "trials", "steps", "evaluations", "failures", "residencies", "checkpoints", "decisions", "log")
)
"""Tables and views that every run has."""


def create_tables(path: Path, *, facts: Mapping[str, str | None]) -> None:
    """Create the database of a new run with its first facts (rows by key), whole or not at all.

    Raises:
        RunStateError: there is a database already.
        StorageFullError: the disk is full.
    """
    if path.exists():
        raise RunStateError(f"{path} already exists; resume that run or choose another directory")
    # made under another name and renamed: a killed process leaves no database without tables
    with (
        atomic_file(path) as partial,
        storage_full_named(path),
        closing(sqlite3.connect(partial, isolation_level=None)) as connection,
    ):
        connection.executescript(
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; {_TABLES}"
        )
        connection.executemany("INSERT INTO facts (key, value) VALUES (?, ?)", list(facts.items()))
        # of a run that was begun here before: a reader may have kept it, and it would hide all rows of this one
        for companion in ("-wal", "-shm"):
            Path(f"{path}{companion}").unlink(missing_ok=True)
