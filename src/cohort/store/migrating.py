"""A database comes to the tables of this version: made new, brought up from an older one, or refused if it is newer."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, inspect, text

from cohort.store.database import Database
from cohort.store.errors import NewerDatabaseError, StoreError

__all__ = ["known_revisions", "migrate", "revision_of"]

# any number, the same for all who migrate
_LOCK = 0x636F686F7274


def _scripts() -> ScriptDirectory:
    config = Config()
    here = str(Path(__file__).parent)
    config.set_main_option("script_location", here)
    config.set_main_option("version_locations", str(Path(here) / "revisions"))
    config.set_main_option("path_separator", "newline")
    return ScriptDirectory.from_config(config)


def _steps(scripts: ScriptDirectory) -> list[Script]:
    return list(reversed(list(scripts.walk_revisions())))


def known_revisions() -> tuple[str, ...]:
    """Return the revisions that this version knows, the oldest first."""
    return tuple(step.revision for step in _steps(_scripts()))


def revision_of(database: Database) -> str | None:
    """Return a database's revision; None if it has no tables."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate(database: Database, *, up_to: str | None = None) -> tuple[str, ...]:
    """Bring a database up to the newest revision, all of it or nothing; one process at a time, the others wait.

    Args:
        up_to: The last revision to apply; None applies all.

    Returns:
        The revisions that were applied.

    Raises:
        NewerDatabaseError: a later version has changed the tables.
        StoreError: the tables of a new database are there, but no revision.
        StoreUnavailable: the database cannot be reached.
    """
    scripts = _scripts()
    steps = _steps(scripts)
    known = [step.revision for step in steps]
    # most processes find nothing to do, and need no lock for that
    if revision_of(database) == (up_to or known[-1]):
        return ()
    with database.write() as connection:
        if database.is_postgresql:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        context = MigrationContext.configure(connection)
        current = context.get_current_revision()
        if current is not None and current not in known:
            raise NewerDatabaseError(
                f"the database {database.url} has revision {current!r}, but this version of Cohort knows those up to "
                f"{known[-1]!r}; install the version that made it, or a later one, or restore the backup from before"
            )
        if current is None and _has_other_tables(connection):
            raise StoreError(
                f"the database {database.url} has tables, but none of a Cohort service; give an empty database"
            )
        first = 0 if current is None else known.index(current) + 1
        last = len(known) if up_to is None else known.index(up_to) + 1
        with Operations.context(context):
            for step in steps[first:last]:
                step.module.upgrade()
                context.stamp(scripts, step.revision)
        return tuple(known[first:last])


def _has_other_tables(connection: Connection) -> bool:
    return bool(inspect(connection).get_table_names())
