"""Transactions, and what the failures of a database become."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.store.database import Database, Moment, database_url, open_database
from cohort.store.errors import StorageFull, StoreUnavailable
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import ProjectStore, Store
from tests.support.postgresql_server import PostgresServer

NEW = NewJob(base_model="base", request={})


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("postgresql://a:b@c/d", "postgresql+psycopg://a:b@c/d"),
        ("postgres://a@c/d", "postgresql+psycopg://a@c/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        (Path("/data/service"), "sqlite:////data/service/service.db"),
    ],
)
def test_a_place_is_a_folder_or_a_url(place: str | Path, url: str) -> None:
    assert database_url(place) == url


@pytest.mark.parametrize("wrong", ["mysql://a@b/c", "postgresql://a@b:x/c", "nothing://"])
def test_other_databases_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=r"--database: found .*allowed: a folder, sqlite:///PATH or postgresql://"):
        open_database(wrong)


def test_no_message_holds_the_password() -> None:
    with pytest.raises(InputError) as refused:
        open_database("postgresql://user:secret@host:port/none")
    assert "secret" not in str(refused.value)
    with closing(open_database("postgresql://user:secret@127.0.0.1:1/none")) as database:
        assert "secret" not in database.url
        with pytest.raises(StoreUnavailable) as raised, database.read():
            pass
    assert "secret" not in str(raised.value)
    assert "127.0.0.1" in str(raised.value)


def test_a_block_that_fails_changes_nothing(store: Store, own: ProjectStore) -> None:
    with suppress(ZeroDivisionError), store.database.write() as connection:
        connection.execute(text("UPDATE projects SET weight = 9"))
        raise ZeroDivisionError
    assert store.tenants.project(own.project_id).weight == 1


def test_our_own_mistakes_are_not_called_unavailable(store: Store) -> None:
    with pytest.raises(Exception, match="no_such_table") as raised, store.database.read() as connection:
        connection.execute(text("SELECT * FROM no_such_table"))
    assert not isinstance(raised.value, StoreUnavailable)
    assert isinstance(raised.value, ProgrammingError) or "no such table" in str(raised.value)


@pytest.mark.parametrize("moment", list(Moment))
def test_a_simulated_failure_before_the_commit_changes_nothing(store: Store, own: ProjectStore, moment: Moment) -> None:
    def fail(now: Moment) -> None:
        if now is moment:
            raise StoreUnavailable("simulated", may_be_done=moment is Moment.COMMITTED)

    failing = Database(store.database.engine, clock=ManualClock(), faults=fail)
    with pytest.raises(StoreUnavailable), failing.write() as connection:
        connection.execute(text("UPDATE projects SET weight = 9"))
    assert store.tenants.project(own.project_id).weight == (9 if moment is Moment.COMMITTED else 1)


def test_a_full_disk_changes_nothing_and_is_said(sqlite_database: Database) -> None:
    database = sqlite_database
    with database.write() as connection:
        connection.execute(text("CREATE TABLE t (x text)"))

    def write_too_much() -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO t VALUES ('a')"))
            connection.exec_driver_sql("PRAGMA max_page_count = 3")
            connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": "x" * 100_000})

    with pytest.raises(StorageFull, match="has no room left") as raised:
        write_too_much()
    assert raised.value.retry_after_seconds > 0
    with database.read() as connection:
        assert connection.scalar(text("SELECT count(*) FROM t")) == 0


def test_a_full_disk_of_postgresql_is_said(postgresql: PostgresServer) -> None:
    failing = text("DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$")
    with (
        closing(open_database(postgresql.url("postgres"))) as database,
        pytest.raises(StorageFull),
        database.write() as connection,
    ):
        connection.execute(failing)


def test_a_database_that_another_process_locks_is_unavailable(sqlite_database: Database, tmp_path: Path) -> None:
    database = sqlite_database
    with database.write() as connection:
        connection.execute(text("CREATE TABLE t (x text)"))
    with database.read() as connection:
        # of the one connection of the pool
        connection.exec_driver_sql("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(tmp_path / "service.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"), database.write():
            pass
        with database.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM t")) == 0


def test_sqlite_loses_nothing_at_a_power_cut(sqlite_database: Database) -> None:
    with sqlite_database.read() as connection:
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_the_time_is_the_clocks_or_the_databases(store: Store, clock: ManualClock, place: str) -> None:
    with store.database.read() as connection:
        assert store.database.now(connection) == clock.now().timestamp()
    with closing(open_database(place)) as real, real.read() as connection:
        # any time after this was written
        assert real.now(connection) > 1.7e9


def test_a_killed_postgresql_is_unavailable_and_then_there_again(
    postgresql: PostgresServer, migrated_database: str, tmp_path: Path
) -> None:
    from cohort.store.store import open_store

    place = postgresql.url(postgresql.new_database(template=migrated_database))
    with closing(open_store(place, blobs=tmp_path / "blobs")) as store:
        organisation = store.tenants.add_organisation("acme", actor="test")
        own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
        job = own.jobs.create(NEW)
        postgresql.kill()
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="cannot be used now") as raised:
                    own.jobs.create(NEW)
                assert raised.value.retry_after_seconds > 0
                assert not raised.value.may_be_done
            with pytest.raises(StoreUnavailable):
                store.check()
        finally:
            postgresql.start()
        assert own.jobs.get(job.id) == job
        own.jobs.create(NEW)


def test_a_postgresql_that_dies_within_a_transaction_keeps_none_of_it(
    postgresql: PostgresServer, migrated_database: str, tmp_path: Path
) -> None:
    def write_and_lose_it(database: Database) -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO organisations (id, name, created_at) VALUES ('org-1', 'acme', 1.0)"))
            postgresql.kill()

    place = postgresql.url(postgresql.new_database(template=migrated_database))
    with closing(open_database(place)) as opened:
        try:
            with pytest.raises(StoreUnavailable):
                write_and_lose_it(opened)
        finally:
            postgresql.start()
        with opened.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM organisations")) == 0
