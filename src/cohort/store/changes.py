"""Waiting for something to change: PostgreSQL tells (LISTEN/NOTIFY), SQLite is asked whether it has changed.

The one place where the two databases differ for those who wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cohort.core.clock import Clock, SystemClock
from cohort.store.database import CHANGES_CHANNEL, Database
from cohort.store.errors import StoreUnavailable

__all__ = ["Change", "Changes", "watch_changes"]

_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Change:
    """What may have changed.

    Attributes:
        kind: ``job`` (its row), ``event`` (of a job), or ``any``: the database cannot tell.
        id: Of the job; empty for ``any``.
    """

    kind: str
    id: str = ""


class Changes(Protocol):
    """Waits for changes; use one from one thread."""

    def wait(self, seconds: float) -> Sequence[Change]:
        """Return what changed since the last call, as soon as there is something; nothing after ``seconds``.

        Raises:
            StoreUnavailable: the database cannot be reached; the next call connects again. What changed in the
                meantime is not told.
        """
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


def watch_changes(database: Database, *, clock: Clock | None = None) -> Changes:
    """Begin to watch: changes committed from now on are told."""
    return _Notified(database) if database.is_postgresql else _Polled(database, clock or SystemClock())


class _Polled:
    """Asks SQLite for its count of changes, which costs no read of a page."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._connection: Any = None
        self._seen = self._version()

    def _version(self) -> tuple[int, int]:
        if self._connection is None:
            # the count is of changes by other connections: this one makes none
            self._connection = self._database.engine.raw_connection()
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            # of a database in memory, whose one connection makes all changes
            return int(version), int(self._connection.driver_connection.total_changes)
        except Exception as error:
            self.close()
            raise StoreUnavailable(f"the database {self._database.url} cannot be read now ({error})") from error

    def wait(self, seconds: float) -> Sequence[Change]:
        end = self._clock.monotonic() + seconds
        while True:
            version = self._version()
            if version != self._seen:
                self._seen = version
                return (Change(kind="any"),)
            left = end - self._clock.monotonic()
            if left <= 0:
                return ()
            self._clock.sleep(min(_POLL_SECONDS, left))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Notified:
    """Listens on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._listen()

    def _listen(self) -> None:
        try:
            pooled = self._database.engine.raw_connection()
            self._connection = pooled.driver_connection
            # out of the pool for good: it listens as long as it lives
            pooled.detach()
            self._connection.autocommit = True
            self._connection.execute(f"LISTEN {CHANGES_CHANNEL}")
        # the pool's errors and the driver's own
        except Exception as error:
            self.close()
            raise self._gone(error) from error

    def wait(self, seconds: float) -> Sequence[Change]:
        if self._connection is None:
            self._listen()
            return (Change(kind="any"),)
        try:
            told = list(self._connection.notifies(timeout=seconds, stop_after=1))
            # and all that came with it
            told += list(self._connection.notifies(timeout=0))
        except Exception as error:
            self.close()
            raise self._gone(error) from error
        parts = dict.fromkeys(tuple(each.payload.split(":", 1)) for each in told)
        return tuple(Change(kind=kind, id=what) for kind, what in parts)

    def _gone(self, error: Exception) -> StoreUnavailable:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return StoreUnavailable(f"the database {self._database.url} cannot be reached now ({said})")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
