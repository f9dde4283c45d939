"""The connection to a run's database: opening, transactions, snapshots, and SQLite's errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cohort.core.durable_files import storage_full_named
from cohort.core.errors import RunStateError
from cohort.core.write_ahead_log import use_write_ahead_log
from cohort.runs.directory import RunDirectory
from cohort.runs.schema import APPLICATION_ID, EARLIER_VERSION, RELATIONS, SCHEMA_VERSION, STEP_COLUMNS

__all__ = ["Database", "database_errors_named", "open_database"]

# SQLite says this of a file that may be whole, so that it must not be replaced by an older copy
_OUT_OF_REACH = ("readonly database", "unable to open", "disk I/O error")
# how long another process may hold the file before a read or write gives up
_PATIENCE_SECONDS = 30.0


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
            # a broken rule of the schema is our own bug, and no state of the file
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
    """Return what helps where the file itself is damaged: checkpoints of a run hold copies of it."""
    if _has_copies(path):
        return f"`cohort resume {path.parent}` puts the copy of the last checkpoint in its place"
    return "restore it from a copy, or start the task again in another directory"


def _hint_for_absence(path: Path) -> str:
    """Return what helps where there is no file: it was deleted, or its run has not made one yet."""
    if _has_copies(path):
        return f"`cohort resume {path.parent}` puts the copy of the last checkpoint in its place"
    directory = RunDirectory(path.parent)
    if path != directory.database or not directory.holds_run():
        return "there is no run here"
    if (holder := directory.lock().holder()) is not None:
        return f"the run is being started by {holder}"
    return f"the run ended before its first step, and `cohort resume {path.parent}` begins it again"


def _has_copies(path: Path) -> bool:
    return path.name == "run.db" and any((path.parent / "checkpoints").glob("*.json"))


class Database:
    """An open database of a run, which its reader and its writer share."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path) -> None:
        self.path = path
        self.connection = connection
        self.is_closed = False

    def close(self) -> None:
        """Close the database; harmless when closed already."""
        self.is_closed = True
        self.connection.close()

    def rows(self, query: str, arguments: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a query as they are fetched."""
        with database_errors_named(self.path), closing(self.connection.cursor()) as cursor:
            yield from cursor.execute(query, arguments)

    def one(self, query: str, arguments: tuple[object, ...] = ()) -> Any:
        """Return the first column of the first row."""
        return next(self.rows(query, arguments))[0]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads inside the block see one moment of the run, whatever another process writes meanwhile."""
        # SQLite has no nested transactions; the outer snapshot covers the inner one
        if self.connection.in_transaction:
            yield
            return
        with database_errors_named(self.path):
            self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def hide_after(self, position: int, *, log_tables: Iterable[str], facts: Iterable[str] = ()) -> None:
        """Hide what was logged after ``position`` from the reads of this snapshot, as if a run had gone back to it.

        Args:
            log_tables: The tables whose rows have a position.
            facts: Keys of facts that were recorded later.
        """
        last = int(position)
        views = {table: f"SELECT * FROM main.{table} WHERE position <= {last}" for table in log_tables}
        # a run of the form before has one already
        earlier_form = [sql for (sql,) in self.rows("SELECT sql FROM sqlite_temp_master WHERE name = 'steps'")]
        for view in earlier_form:
            views["steps"] = f"{view.partition(' AS ')[2]} WHERE position <= {last}"
        views["step_sums"] = (
            f"SELECT trial_id, sum(num_tokens) AS num_tokens FROM main.steps WHERE position <= {last} GROUP BY trial_id"
        )
        views["residencies"] = (
            "SELECT residency_id, trial_id, slot, start_position, start_seconds, "
            f"min(stop_position, {last}) AS stop_position, stop_seconds "
            f"FROM main.residencies WHERE start_position <= {last}"
        )
        keys = ", ".join(f"'{key}'" for key in facts)
        views["facts"] = f"SELECT * FROM main.facts WHERE key NOT IN ({keys})"
        with database_errors_named(self.path):
            if earlier_form:
                self.connection.execute("DROP VIEW temp.steps")
            # a temporary name goes before that of the file; the end of the snapshot takes it back
            for name, query in views.items():
                self.connection.execute(f"CREATE TEMP VIEW {name} AS {query}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block writes, all of it or nothing."""
        with database_errors_named(self.path):
            # takes the write lock at once: a deferred transaction that reads first fails where it begins to write
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                # a full disk has rolled back already
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise


def open_database(path: Path, *, read_only: bool) -> Database:
    """Open an existing run database.

    Raises:
        RunStateError: the file is absent, damaged, not a run's, or of a version that this release cannot read.
    """
    if not path.is_file():
        raise RunStateError(f"{path} does not exist; {_hint_for_absence(path)}")
    with database_errors_named(path):
        connection = (
            _connect_read_only(path)
            if read_only
            else sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE_SECONDS)
        )
        try:
            _check(connection, path=path, read_only=read_only)
        except BaseException:
            connection.close()
            raise
    return Database(connection, path=path)


def _check(connection: sqlite3.Connection, *, path: Path, read_only: bool) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise RunStateError(f"{path} is a database, but not of a run; check the path")
    if version not in (EARLIER_VERSION, SCHEMA_VERSION):
        raise RunStateError(
            f"{path} has schema version {version}; this release reads {SCHEMA_VERSION}. "
            "Use the release that the run was started with"
        )
    if missing := sorted(RELATIONS - {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}):
        raise RunStateError(f"{path} is damaged (it has no table {', '.join(missing)}); {_hint_for_damage(path)}")
    if version == EARLIER_VERSION:
        _add_step_columns(connection, read_only=read_only)
    if read_only:
        return
    connection.execute("PRAGMA foreign_keys = ON")
    # readers see the last commit while the writer writes
    use_write_ahead_log(connection)
    # a killed process loses nothing under NORMAL; a power cut may lose the last transactions, never the file. What a
    # checkpoint refers to is flushed by RunStore.record_checkpoint
    connection.execute("PRAGMA synchronous = NORMAL")
    # finds torn pages now, not in the middle of the run; milliseconds for a run of ordinary size
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise RunStateError(f"{path} is damaged ({verdict}); {_hint_for_damage(path)}")


def _add_step_columns(connection: sqlite3.Connection, *, read_only: bool) -> None:
    """Give a run of the form before the columns that its steps lack: in the file, or for this reader alone."""
    if read_only:
        added = ", ".join(f"{value} AS {name}" for name, value in STEP_COLUMNS.items())
        # a temporary name goes before that of the file
        connection.execute(f"CREATE TEMP VIEW steps AS SELECT *, {added} FROM main.steps")
        return
    connection.execute("BEGIN IMMEDIATE")
    for name, value in STEP_COLUMNS.items():
        connection.execute(f"ALTER TABLE steps ADD COLUMN {name} TEXT NOT NULL DEFAULT {value}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _connect_read_only(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None, timeout=_PATIENCE_SECONDS)
    try:
        connection.execute("PRAGMA user_version").fetchone()
        return connection
    except sqlite3.OperationalError:
        connection.close()
        # a WAL database in a folder that we may not write to: it is readable as it is unless a log waits next to it
        waiting = Path(f"{path}-wal")
        if waiting.exists() and waiting.stat().st_size:
            raise
        return sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)
