"""Processes that open one new database at the same time all open it."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cohort.core.write_ahead_log import use_write_ahead_log


def test_many_that_are_first_at_the_same_time(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def open_new(number: int) -> str:
        with closing(sqlite3.connect(tmp_path / f"{number}.db", isolation_level=None)) as connection:
            barrier.wait()
            use_write_ahead_log(connection)
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            assert set(threads.map(open_new, [number] * 4)) == {"wal"}


def test_a_file_that_stays_locked_is_an_error_and_is_waited_for(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0, check_same_thread=False)) as first,
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)) as second,
    ):
        first.execute("BEGIN IMMEDIATE")
        first.execute("CREATE TABLE rows (x)")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            use_write_ahead_log(second, seconds=0.03)
        timer = threading.Timer(0.05, lambda: first.execute("COMMIT"))
        timer.start()
        use_write_ahead_log(second)
        timer.join()


def test_another_error_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database" * 100)
    with (
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection,
        pytest.raises(sqlite3.DatabaseError, match="not a database"),
    ):
        use_write_ahead_log(connection)
