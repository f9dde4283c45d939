"""Databases come to the present tables: new ones, older ones, several processes at once; newer ones are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from cohort.store import tables
from cohort.store.database import Database, Moment, open_database
from cohort.store.errors import NewerDatabaseError, StoreError
from cohort.store.migrating import known_revisions, migrate, revision_of
from cohort.store.store import open_store


def test_the_revisions_make_the_tables_that_the_code_has(empty_place: str) -> None:
    database = open_database(empty_place)
    assert migrate(database) == known_revisions()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
    assert migrate(database) == ()
    database.close()


def test_an_older_database_keeps_its_rows(empty_place: str, tmp_path: Path) -> None:
    database = open_database(empty_place)
    migrate(database, up_to="0001")
    with database.write() as connection:
        connection.execute(text("INSERT INTO organisations (id, name, created_at) VALUES ('org-1', 'acme', 1.0)"))
        connection.execute(text("INSERT INTO leases (name, token, expires_at) VALUES ('housekeeping', 1, 0)"))
    database.close()
    store = open_store(empty_place, blobs=tmp_path / "blobs")
    assert revision_of(store.database) == known_revisions()[-1]
    assert [each.name for each in store.tenants.organisations()] == ["acme"]
    assert store.keep_house("a process") is not None
    store.close()


def test_a_newer_database_is_refused_and_left_alone(empty_place: str, tmp_path: Path) -> None:
    database = open_database(empty_place)
    migrate(database)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerDatabaseError, match=r"has revision '9999', but this version of Cohort knows those up to"):
        open_store(empty_place, blobs=tmp_path / "blobs")
    assert revision_of(database) == "9999"
    database.close()


def test_a_database_of_something_else_is_refused(empty_place: str) -> None:
    database = open_database(empty_place)
    with database.write() as connection:
        connection.execute(text("CREATE TABLE customers (id integer)"))
    with pytest.raises(StoreError, match="has tables, but none of a Cohort service"):
        migrate(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == ["customers"]
    database.close()


def test_one_of_several_processes_migrates(empty_place: str) -> None:
    databases = [open_database(empty_place) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        applied = sorted(threads.map(migrate, databases), key=len)
    assert applied == [(), (), (), known_revisions()]
    for database in databases:
        database.close()


def test_a_migration_that_is_cut_off_changes_nothing(empty_place: str) -> None:
    def fail(moment: Moment) -> None:
        if moment is Moment.COMMIT:
            raise KeyboardInterrupt

    database = open_database(empty_place)
    failing = Database(database.engine, faults=fail)
    with pytest.raises(KeyboardInterrupt):
        migrate(failing)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    assert migrate(database) == known_revisions()
    database.close()


def test_an_upgrade_from_each_revision_ends_with_the_same_tables(tmp_path: Path) -> None:
    for number, revision in enumerate(known_revisions()):
        database = open_database(tmp_path / str(number))
        migrate(database, up_to=revision)
        migrate(database)
        with database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        database.close()
