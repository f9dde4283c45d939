"""The queue on disk: ``queue.db`` (SQLite) with tasks, the dispatcher's decisions, and which task held which slot when.

Several processes use it at once: the dispatcher, which alone changes a task's state while it runs, and the commands
that add, remove and look. Every method is one transaction and is on the disk when it returns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from cohort.core.durable_files import atomic_file
from cohort.core.errors import InputError, Problem, RunStateError
from cohort.core.write_ahead_log import use_write_ahead_log
from cohort.runs.database import database_errors_named
from cohort.runs.directory import QUEUE_DATABASE
from cohort.runs.lock import RunLock
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.records import QueuedTask, QueueFacts, QueueFactUpdates, RunStretch, TaskDecision, TaskState

__all__ = ["LOCK_NAME", "QueueStore", "find_queue", "open_queue", "queue_holder"]

LOCK_NAME = ".queue.lock"

SCHEMA_VERSION = 2
# "COHQ": a run's database has another, so neither is opened as the other
_APPLICATION_ID = 0x434F4851

_TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE tasks (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    task TEXT NOT NULL,
    digests TEXT NOT NULL,
    priority INTEGER NOT NULL,
    added_at TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    is_withdrawn INTEGER NOT NULL,
    expected_seconds REAL,
    attempts INTEGER NOT NULL,
    planned_slot INTEGER,
    planned_start REAL,
    planned_end REAL,
    options TEXT NOT NULL DEFAULT '[]',
    tenant TEXT NOT NULL DEFAULT '',
    weight REAL NOT NULL DEFAULT 1.0
);

CREATE TABLE decisions (
    position INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    kind TEXT NOT NULL,
    task TEXT NOT NULL,
    text TEXT NOT NULL,
    numbers TEXT NOT NULL
);

CREATE TABLE stretches (
    position INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    slot_id INTEGER NOT NULL,
    device TEXT NOT NULL,
    start_seconds REAL NOT NULL,
    end_seconds REAL,
    outcome TEXT NOT NULL
);
"""
# by the version that they lead from
_UPGRADES = {
    1: "ALTER TABLE tasks ADD COLUMN tenant TEXT NOT NULL DEFAULT ''; "
    "ALTER TABLE tasks ADD COLUMN weight REAL NOT NULL DEFAULT 1.0;"
}
# the table's columns are the record's fields
_NAMES = tuple(field.name for field in fields(QueuedTask))
_COLUMNS, _PLACES = ", ".join(_NAMES), ", ".join("?" * len(_NAMES))

_OPEN = tuple(state.value for state in TaskState if not state.is_final)


class QueueStore:
    """One queue's database; close it, or use it with ``with``."""

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> QueueStore:
        """Open a queue, or make an empty one.

        Raises:
            RunStateError: there is none, or the file is no queue of this version.
            StorageFullError: the disk is full.
        """
        if not path.exists():
            if not create:
                raise RunStateError(f"{path} does not exist; there is no queue here")
            # two processes that begin a queue at the same moment share it: the second finds the file and keeps it
            with atomic_file(path, replaces=False) as partial, database_errors_named(path):
                connection = sqlite3.connect(partial, isolation_level=None)
                connection.executescript(
                    f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; {_TABLES}"
                )
                connection.close()
        with database_errors_named(path):
            # another process may hold the write lock for a moment: wait for it instead of failing
            connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
            found = _stamp(connection)
            if found[0] == _APPLICATION_ID and found[1] in _UPGRADES:
                _upgrade(connection)
                found = _stamp(connection)
            if found != [_APPLICATION_ID, SCHEMA_VERSION]:
                connection.close()
                raise RunStateError(f"{path} is not a queue of this version (found {found}); choose another directory")
            # commands read while the dispatcher writes
            use_write_ahead_log(connection)
            # a decision must survive a power cut: workers act on it at once
            connection.execute("PRAGMA synchronous = FULL")
        return cls(connection, path=path)

    def __init__(self, connection: sqlite3.Connection, *, path: Path) -> None:
        self._connection, self.path = connection, path

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> QueueStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(self, tasks: Iterable[QueuedTask]) -> None:
        """Add tasks, all or none; a removed task gives way to a new one of its name.

        Raises:
            RunStateError: a name is taken.
        """
        with self._transaction():
            for task in tasks:
                self._connection.execute(
                    "DELETE FROM tasks WHERE name = ? AND state = ?", (task.name, TaskState.REMOVED.value)
                )
                try:
                    self._connection.execute(f"INSERT INTO tasks ({_COLUMNS}) VALUES ({_PLACES})", _row_of(task))
                except sqlite3.IntegrityError:
                    raise RunStateError(f"the queue already has a task {task.name}") from None

    def tasks(self) -> tuple[QueuedTask, ...]:
        return tuple(_task_of(row) for row in self._rows(f"SELECT {_COLUMNS} FROM tasks ORDER BY position"))

    def has_open_tasks(self) -> bool:
        return any(state in _OPEN for (state,) in self._rows("SELECT DISTINCT state FROM tasks"))

    def task(self, name: str) -> QueuedTask | None:
        """Return one task; None when there is none of that name."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM tasks WHERE name = ?", name)
        return next((_task_of(row) for row in rows), None)

    def forget(self, names: Iterable[str]) -> None:
        """Remove tasks that are over, and what was decided and recorded of them alone; open ones stay."""
        with self._transaction():
            states = dict(self._rows("SELECT name, state FROM tasks"))
            over = [name for name in names if name in states and TaskState(states[name]).is_final]
            places = ", ".join("?" * len(over))
            for table, column in (("tasks", "name"), ("decisions", "task"), ("stretches", "task")):
                self._connection.execute(f"DELETE FROM {table} WHERE {column} IN ({places})", over)

    def update(self, name: str, **changes: Any) -> QueuedTask:
        """Change fields of a task and return it."""
        with self._transaction():
            found = self.task(name)
            assert found is not None, f"{name} is not a task of this queue"
            changed = replace(found, **changes)
            assignments = ", ".join(f"{name} = ?" for name in _NAMES)
            self._connection.execute(f"UPDATE tasks SET {assignments} WHERE name = ?", (*_row_of(changed), name))
        return changed

    def facts(self) -> QueueFacts:
        """Return facts about the queue as a whole."""
        found = {key: json.loads(value) for key, value in self._rows("SELECT key, value FROM facts")}
        if "began_at" in found:
            found["began_at"] = datetime.fromisoformat(found["began_at"])
        return QueueFacts(**{name: value for name, value in found.items() if name in QueueFacts.__annotations__})

    def set_facts(self, **facts: Unpack[QueueFactUpdates]) -> None:
        """Set facts, e.g. ``set_facts(last_dispatcher_seconds=12.5)``."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO facts (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [(key, json.dumps(value, default=datetime.isoformat)) for key, value in facts.items()],
            )

    def record(self, decision: TaskDecision) -> None:
        with self._transaction():
            self._connection.execute(
                "INSERT INTO decisions (seconds, kind, task, text, numbers) VALUES (?, ?, ?, ?, ?)",
                (decision.seconds, decision.kind, decision.task, decision.text, json.dumps(decision.numbers)),
            )

    def decisions(self) -> tuple[TaskDecision, ...]:
        rows = self._rows("SELECT seconds, kind, task, text, numbers FROM decisions ORDER BY position")
        return tuple(_decision_of(row) for row in rows)

    def last_plan(self) -> tuple[TaskDecision | None, int]:
        """Return the last plan of the log, and how many there are."""
        rows = self._rows(
            "SELECT seconds, kind, task, text, numbers FROM decisions WHERE kind = 'plan' "
            "ORDER BY position DESC LIMIT 1"
        )
        (count,) = self._rows("SELECT count(*) FROM decisions WHERE kind = 'plan'")[0]
        return next((_decision_of(row) for row in rows), None), count

    def begin_stretch(self, stretch: RunStretch) -> None:
        """Record that a task took a slot."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO stretches (task, slot_id, device, start_seconds, outcome) VALUES (?, ?, ?, ?, '')",
                (stretch.task, stretch.slot_id, stretch.device, stretch.start_seconds),
            )

    def end_stretches(self, *, task: str | None, seconds: float, outcome: str) -> None:
        """Record that a task left its slot; None ends those that a killed dispatcher left open."""
        where, arguments = ("", ()) if task is None else (" AND task = ?", (task,))
        with self._transaction():
            self._connection.execute(
                # max: the wall clock, which bridges two dispatchers, may have been set back
                "UPDATE stretches SET end_seconds = max(start_seconds, ?), outcome = ? "
                f"WHERE end_seconds IS NULL{where}",
                (seconds, outcome, *arguments),
            )

    def stretches(self) -> tuple[RunStretch, ...]:
        """Return which task held which slot when, by start."""
        return tuple(
            RunStretch(
                task=task,
                slot_id=slot_id,
                device=device,
                start_seconds=start_seconds,
                end_seconds=end_seconds,
                outcome=outcome,
            )
            for task, slot_id, device, start_seconds, end_seconds, outcome in self._rows(
                "SELECT task, slot_id, device, start_seconds, end_seconds, outcome FROM stretches ORDER BY position"
            )
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # update() reads and writes in one transaction; what it calls joins it
        if self._connection.in_transaction:
            yield
            return
        with database_errors_named(self.path):
            # IMMEDIATE takes the write lock now: a read that becomes a write later fails if another process wrote
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with database_errors_named(self.path):
            return list(self._connection.execute(query, arguments))


def _stamp(connection: sqlite3.Connection) -> list[int]:
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]


def _upgrade(connection: sqlite3.Connection) -> None:
    """Give a queue of an earlier version what this one adds; what is in it stays."""
    connection.execute("BEGIN IMMEDIATE")
    # another process may have done it while this one waited
    for version in range(_stamp(connection)[1], SCHEMA_VERSION):
        for statement in _UPGRADES[version].split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _row_of(task: QueuedTask) -> tuple[object, ...]:
    plain = {
        "task": json.dumps(task.task),
        "digests": json.dumps(task.digests),
        "state": task.state.value,
        "options": json.dumps([(option.num_gpus, option.seconds) for option in task.options]),
    }
    return tuple(plain[name] if name in plain else getattr(task, name) for name in _NAMES)


def _decision_of(row: tuple[Any, ...]) -> TaskDecision:
    seconds, kind, task, text, numbers = row
    return TaskDecision(seconds=seconds, kind=kind, task=task, text=text, numbers=json.loads(numbers))


def _task_of(row: tuple[Any, ...]) -> QueuedTask:
    found = dict(zip(_NAMES, row, strict=True))
    found["task"], found["digests"] = json.loads(found["task"]), json.loads(found["digests"])
    found["state"], found["is_withdrawn"] = TaskState(found["state"]), bool(found["is_withdrawn"])
    options = json.loads(found["options"])
    found["options"] = tuple(TaskOption(num_gpus=count, seconds=seconds) for count, seconds in options)
    return QueuedTask(**found)


def find_queue(directory: str | Path) -> bool:
    return (Path(directory) / QUEUE_DATABASE).is_file()


def open_queue(directory: str | Path) -> QueueStore:
    """Open the queue in ``directory``.

    Raises:
        InputError: there is none.
    """
    if not find_queue(directory):
        raise InputError(
            Problem(
                where=str(directory),
                found=f"no {QUEUE_DATABASE} in it" if Path(directory).exists() else "nothing",
                allowed="a directory that `cohort run` or `cohort queue add` made",
                hint="Check the path, or start a queue with `cohort run TASK.yaml ...`.",
            )
        )
    return QueueStore.open(Path(directory) / QUEUE_DATABASE)


def queue_holder(directory: str | Path) -> str | None:
    """Return the process that works the queue off; None when none does."""
    return RunLock(Path(directory) / LOCK_NAME).holder()
