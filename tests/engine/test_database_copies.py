"""A copy takes the place of a damaged database, never of one that is only out of reach."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import RunStateError, StorageFullError
from cohort.engine import database_copies
from cohort.engine.database_copies import copy_database, mend_database
from cohort.engine.run_directory import RunDirectory
from cohort.engine.run_store import RunStore
from cohort.engine.run_store_schema import database_errors_named


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run whose newest record is not in its copy."""
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database)
    copy_database(directory, position=1)
    store.set_facts({"later": True})
    store.close()
    return directory


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("database or disk is full", StorageFullError, "no space left"),
        ("attempt to write a readonly database", RunStateError, "mend the disk or its permissions"),
        ("unable to open database file", RunStateError, "mend the disk or its permissions"),
        ("disk I/O error", RunStateError, "mend the disk or its permissions"),
        ("database is locked", RunStateError, "locked by another process"),
    ],
)
def test_a_database_out_of_reach_is_left_alone(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception], message: str
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        with database_errors_named(path):
            raise sqlite3.OperationalError(text)

    before = directory.database.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(database_copies, "open_database", refuse)
        with pytest.raises(kind, match=message):
            mend_database(directory)
    assert directory.database.read_bytes() == before
    assert not directory.database.with_name("run.db.damaged").exists()
    assert mend_database(directory) is None


@pytest.mark.parametrize("content", [b"", b"no database at all\n" * 500])
def test_a_damaged_one_gives_way(directory: RunDirectory, content: bytes) -> None:
    directory.database.write_bytes(content)
    assert "took its place" in str(mend_database(directory))
    assert mend_database(directory) is None
