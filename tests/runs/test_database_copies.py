"""A copy takes the place of a damaged database, never of one that is only out of reach."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import RunStateError, StorageFullError
from cohort.runs import database_copies
from cohort.runs.database import database_errors_named
from cohort.runs.database_copies import copy_database, repair_database, replace_database
from cohort.runs.directory import RunDirectory
from cohort.runs.store import RunStore


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run whose newest record is not in its copy."""
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database)
    copy_database(directory, position=1)
    store.set_facts(task_name="later")
    store.close()
    return directory


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("database or disk is full", StorageFullError, "no space left"),
        ("attempt to write a readonly database", RunStateError, "fix the disk or its permissions"),
        ("unable to open database file", RunStateError, "fix the disk or its permissions"),
        ("disk I/O error", RunStateError, "fix the disk or its permissions"),
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
            repair_database(directory)
    assert directory.database.read_bytes() == before
    assert not directory.database.with_name("run.db.damaged").exists()
    assert repair_database(directory) is None


@pytest.mark.parametrize("content", [b"", b"no database at all\n" * 500])
def test_a_damaged_one_gives_way(directory: RunDirectory, content: bytes) -> None:
    directory.database.write_bytes(content)
    assert "took its place" in str(repair_database(directory))
    assert repair_database(directory) is None


def test_one_without_a_good_copy_is_told_with_what_is_kept(directory: RunDirectory) -> None:
    for file in (directory.database, *directory.checkpoints.glob("*.db")):
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TABLE evaluations")
    with pytest.raises(RunStateError) as caught:
        repair_database(directory)
    told = str(caught.value)
    assert "is damaged (it has no table evaluations), and no checkpoint has a good copy of it" in told
    assert "start the task again in another directory" in told
    assert "cohort resume" not in told


class Killed(BaseException):
    """What a process that is killed cannot catch."""


def kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> list[int]:
    """Kill before the given one of the calls that change names in a folder; return a list that counts them."""
    calls: list[int] = []

    def counted(change: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            if len(calls) == call:
                raise Killed
            calls.append(len(calls))
            return change(*args, **kwargs)

        return changed

    for owner, name in ((Path, "unlink"), (Path, "replace"), (os, "replace"), (os, "link")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return calls


@pytest.fixture
def torn(tmp_path: Path) -> RunDirectory:
    """A run whose newest records are in the write-ahead log alone, as a kill leaves it, with a copy of the first."""
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database)
    store.set_facts(task_name="first")
    copy_database(directory, position=1)
    store.set_facts(run_id="second")
    killed = tmp_path / "killed"
    shutil.copytree(directory.root, killed)
    store.close()
    return RunDirectory(killed)


@pytest.mark.parametrize("call", range(8))
def test_a_kill_while_a_copy_takes_the_place_leaves_the_old_one_or_the_copy(
    torn: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    copy = torn.checkpoints / "000000001.db"
    with monkeypatch.context() as patched:
        calls = kill_at(patched, call)
        with contextlib.suppress(Killed):
            replace_database(torn, copy)
    was_killed = len(calls) == call
    assert was_killed or call >= len(calls)
    torn.clean_up()
    assert repair_database(torn) is None
    with contextlib.closing(RunStore.resume(torn.database)) as store:
        facts = store.reader.facts()
    assert facts.task_name == "first"
    assert facts.run_id is None or was_killed
    assert sorted(path.name for path in torn.root.glob("run.db*")) == ["run.db"]


@pytest.mark.parametrize("call", range(9))
def test_a_kill_while_a_damaged_one_is_mended_leaves_it_to_the_next(
    torn: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    torn.database.write_bytes(b"no database at all\n" * 500)
    with monkeypatch.context() as patched:
        kill_at(patched, call)
        with contextlib.suppress(Killed):
            repair_database(torn)
    torn.clean_up()
    repair_database(torn)
    with contextlib.closing(RunStore.resume(torn.database)) as store:
        assert store.reader.facts().task_name == "first"
