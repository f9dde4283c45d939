"""One database, SQLite or PostgreSQL: transactions, its time, and what its failures mean.

Nothing here starts a thread. A failure of the database becomes a :class:`~cohort.store.errors.StoreUnavailable` or
:class:`~cohort.store.errors.StorageFull`, after which the next transaction connects again by itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.core.process.fair_lock import FairLock
from cohort.core.write_ahead_log import use_write_ahead_log
from cohort.store.errors import StorageFull, StoreUnavailable

__all__ = ["CHANGES_CHANNEL", "Database", "Moment", "database_url", "open_database", "sqlite_file"]

CHANGES_CHANNEL = "cohort_changes"
"""The channel of PostgreSQL's NOTIFY."""

_BUSY_SECONDS = 10
_POOL_SIZE = 10
_CONNECT_SECONDS = 5
_IMMEDIATE = "cohort_immediate"

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_FULL_STATES = ("53100", "53200")
# connection exceptions, lack of connections, shutdown, deadlock, serialization, read-only standby
_GONE_STATES = ("08", "53300", "57P", "40001", "40P01", "25006", "55P03")
_SQLITE_FULL = ("database or disk is full",)
_SQLITE_GONE = ("unable to open database file", "database is locked", "disk i/o error", "readonly database")


class Moment(StrEnum):
    """When a simulated database may fail: see ``faults`` of :class:`Database`."""

    BEGIN = "begin"
    COMMIT = "commit"
    COMMITTED = "committed"


class Database:
    """Runs transactions.

    Attributes:
        url: Where the database is, without its password.
        is_postgresql: Whether it is PostgreSQL.
    """

    def __init__(
        self, engine: Engine, *, clock: Clock | None = None, faults: Callable[[Moment], None] | None = None
    ) -> None:
        """Take a database that is open.

        Args:
            clock: Gives the time in place of the database, for simulations and tests.
            faults: Is called at the moments of each transaction, and may raise: at ``committed`` the change is there,
                and its maker is not told. For simulations.
        """
        self._engine = engine
        self._clock = clock
        self._faults = faults or (lambda _: None)
        self.url = engine.url.render_as_string(hide_password=True)
        self.is_postgresql = engine.dialect.name == "postgresql"
        # SQLite's own waiting sleeps, and luck says who is next; other processes still wait so
        self._turn = nullcontext() if self.is_postgresql else FairLock()

    @property
    def engine(self) -> Engine:
        """The engine itself, for what needs a connection of its own (migrations, LISTEN)."""
        return self._engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection for reading: one moment of the database on SQLite, one a statement on PostgreSQL.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        self._faults(Moment.BEGIN)
        with self._transaction(is_writing=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are all on the disk when the block ends, or none of them.

        Raises:
            StorageFull: there is no room for the changes; none of them is made.
            StoreUnavailable: the database cannot be reached; ``may_be_done`` says whether that was during the commit.
        """
        # before its turn: a simulation lets others write here
        self._faults(Moment.BEGIN)
        with self._turn, self._transaction(is_writing=True) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, is_writing: bool) -> Iterator[Connection]:
        is_committing = False
        try:
            with self._engine.connect() as connection:
                if is_writing and not self.is_postgresql:
                    connection = connection.execution_options(**{_IMMEDIATE: True})
                with connection.begin() as transaction:
                    yield connection
                    if not is_writing:
                        return
                    self._faults(Moment.COMMIT)
                    is_committing = True
                    transaction.commit()
                self._faults(Moment.COMMITTED)
        except (DBAPIError, PoolTimeoutError) as error:
            typed = _typed(error, url=self.url, is_committing=is_committing)
            if typed is error:
                raise
            raise typed from error

    def now(self, connection: Connection) -> float:
        """Return the time in seconds since 1970: the database's, so that several servers agree, or the injected one."""
        if self._clock is not None:
            return self._clock.now().timestamp()
        if self.is_postgresql:
            return float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())::float8")) or 0.0)
        # all processes of a SQLite database are on one machine
        return time.time()

    def announce(self, connection: Connection, *, kind: str, id: str) -> None:  # noqa: A002
        """Tell listeners at the commit that a thing has changed (see :mod:`cohort.store.changes`)."""
        if self.is_postgresql:
            connection.execute(
                text("SELECT pg_notify(:channel, :what)"), {"channel": CHANGES_CHANNEL, "what": f"{kind}:{id}"}
            )

    def close(self) -> None:
        """Give back all connections."""
        self._engine.dispose()


def _typed(error: Exception, *, url: str, is_committing: bool) -> Exception:
    """Return what a driver's error means to callers; errors that are our own mistakes come back as they are."""
    original = getattr(error, "orig", None) or error
    state, words = str(getattr(original, "sqlstate", None) or ""), str(original).lower()
    if state in _FULL_STATES or any(full in words for full in _SQLITE_FULL):
        return StorageFull(f"the database {url} has no room left; free space on its disk. Nothing was changed")
    is_gone = (
        isinstance(error, PoolTimeoutError)
        or bool(getattr(error, "connection_invalidated", False))
        or any(state.startswith(gone) for gone in _GONE_STATES if state)
        or any(gone in words for gone in _SQLITE_GONE)
        # psycopg gives no state when it never reached the server, or lost it
        or (not state and type(original).__name__ in ("OperationalError", "InterfaceError") and "sqlite" not in url)
    )
    if not is_gone:
        return error
    fix = "start it, or correct the place (--database, --folder, or database in the service's file)"
    if "sqlite" in url:
        # a file system that is mounted for reading says no more than that the file cannot be opened
        fix = "see that its folder is there and can be written, and that its disk works"
    fix += "; what was acknowledged before is safe"
    return StoreUnavailable(
        f"the database {url} cannot be used now ({_first_line(original)}); {fix}", may_be_done=is_committing
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def database_url(place: str | Path) -> str:
    """Return the URL of the database of a service folder, or a URL as it is."""
    if isinstance(place, str) and "://" in place:
        # the driver that the extra installs; SQLAlchemy's own default is psycopg2
        for short in ("postgresql://", "postgres://"):
            if place.startswith(short):
                return "postgresql+psycopg://" + place.removeprefix(short)
        return place
    return f"sqlite:///{Path(place).absolute() / 'service.db'}"


def open_database(
    place: str | Path, *, clock: Clock | None = None, faults: Callable[[Moment], None] | None = None
) -> Database:
    """Open a database without looking at its tables; the first transaction connects.

    Args:
        place: A folder, for SQLite in it, or a URL (``postgresql://user:password@host/name``, ``sqlite:///path``).
        clock: As of :class:`Database`; so is ``faults``.

    Raises:
        InputError: the URL is none, or names another kind of database.
    """
    given, url = database_url(place), _read_url(place)
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(_problem(url.get_backend_name(), "another kind of database"))
    if url.get_backend_name() == "postgresql":
        return Database(_open_postgresql(given), clock=clock, faults=faults)
    return Database(_open_sqlite(given), clock=clock, faults=faults)


def _problem(found: str, reason: str) -> Problem:
    shown = re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", found)
    return Problem(
        where="--database",
        found=f"{shown!r} ({reason})",
        allowed="a folder, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
        hint="Give one of these.",
    )


def _open_postgresql(url: str) -> Engine:
    try:
        return create_engine(
            url,
            pool_size=_POOL_SIZE,
            pool_timeout=_BUSY_SECONDS,
            # a connection that the server has closed meanwhile is replaced before it is used
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "cohort"},
            # an error's text may be logged, and must not hold what a client sent
            hide_parameters=True,
        )
    except ModuleNotFoundError as error:
        hint = "Install the driver: pip install 'cohort-lora[service]'."
        problem = Problem(where="--database", found="a PostgreSQL URL without psycopg", allowed="SQLite", hint=hint)
        raise InputError(problem) from error


def sqlite_file(place: str | Path) -> Path | None:
    """Return the file of a SQLite database; None for one in memory or at a ``file:`` URI, and for PostgreSQL.

    Raises:
        InputError: the URL is none.
    """
    url = _read_url(place)
    name = url.database if url.get_backend_name() == "sqlite" else None
    # SQLite's own URIs say how the file is opened
    return None if name in (None, "", ":memory:") or str(name).startswith("file:") else Path(str(name))


def _read_url(place: str | Path) -> URL:
    try:
        return make_url(database_url(place))
    except Exception as error:
        raise InputError(_problem(str(place), str(error))) from error


def _open_sqlite(url: str) -> Engine:
    path = make_url(url).database
    is_in_memory = path in (None, "", ":memory:")
    if not is_in_memory and path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    more: dict[str, Any] = (
        {"poolclass": StaticPool} if is_in_memory else {"pool_size": _POOL_SIZE, "pool_timeout": _BUSY_SECONDS}
    )
    engine = create_engine(
        url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False}, hide_parameters=True, **more
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: ConnectionPoolEntry) -> None:
        # the driver begins transactions late and not for reads; they are begun below
        connection.isolation_level = None
        use_write_ahead_log(connection, seconds=_BUSY_SECONDS)
        for pragma in ("synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # a reader that becomes a writer later can fail at once, however long it would wait
        is_writing = connection.get_execution_options().get(_IMMEDIATE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine
