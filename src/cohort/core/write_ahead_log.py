"""A SQLite database whose readers see the last commit while a writer writes."""

from __future__ import annotations

import sqlite3
import time

__all__ = ["use_write_ahead_log"]

_PAUSE_SECONDS = 0.01
# the rest of an error's code says why it was busy
_PRIMARY = 0xFF


def use_write_ahead_log(connection: sqlite3.Connection, *, seconds: float = 10.0) -> None:
    """Let a database keep a write-ahead log, which it remembers.

    Two processes that do this first to one file at the same time both hold it for reading, so SQLite refuses one of
    them at once, however long the connection would wait for a lock.

    Args:
        seconds: How long to go on asking.

    Raises:
        sqlite3.OperationalError: the file is locked for longer, or cannot be read or written.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(_PAUSE_SECONDS)
