"""Databases come to the present tables: new ones, older ones, several processes at once; newer ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from cohort.store import migrating, tables
from cohort.store.database import Database, Moment, open_database
from cohort.store.errors import NewerDatabaseError, StoreError
from cohort.store.migrating import known_revisions, migrate, revision_of
from cohort.store.store import open_store


@pytest.fixture
def database(empty_place: str) -> Iterator[Database]:
    """A database without tables."""
    with closing(open_database(empty_place)) as opened:
        yield opened


def test_the_revisions_make_the_tables_that_the_code_has(database: Database) -> None:
    assert migrate(database) == known_revisions()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
    assert migrate(database) == ()


@pytest.fixture
def later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Stands for a later version of Cohort from the call on: it knows one more step, which adds a column."""

    def install() -> None:
        scripts = migrating._scripts()
        own = Path(next(iter(scripts.walk_revisions())).path).parent
        steps = tmp_path / "revisions"
        steps.mkdir()
        (steps / "r9999_later.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '9999', {known_revisions()[-1]!r}\n"
            "def upgrade():\n    op.add_column('organisations', sa.Column('colour', sa.Text()))\n"
        )
        both = ScriptDirectory(str(own.parent), version_locations=[str(own), str(steps)])
        monkeypatch.setattr(migrating, "_scripts", lambda: both)

    return install


def test_an_older_database_keeps_its_rows(empty_place: str, tmp_path: Path, later_version: Callable[[], None]) -> None:
    before = known_revisions()
    with closing(open_database(empty_place)) as database:
        migrate(database)
        with database.write() as connection:
            connection.execute(text("INSERT INTO organisations (id, name, created_at) VALUES ('org-1', 'acme', 1.0)"))
            connection.execute(text("INSERT INTO leases (name, token, expires_at) VALUES ('housekeeping', 1, 0)"))
    later_version()
    assert known_revisions() == (*before, "9999")
    with closing(open_store(empty_place, blobs=tmp_path / "blobs")) as store:
        assert revision_of(store.database) == "9999"
        with store.database.read() as connection:
            assert "colour" in {column["name"] for column in inspect(connection).get_columns("organisations")}
        assert [each.name for each in store.tenants.organisations()] == ["acme"]
        assert store.keep_house("a process") is not None


def test_a_database_can_be_left_at_an_older_revision(database: Database, later_version: Callable[[], None]) -> None:
    later_version()
    *older, newest = known_revisions()
    assert migrate(database, up_to=older[-1]) == tuple(older)
    assert revision_of(database) == older[-1]
    assert migrate(database) == (newest,)


def test_a_newer_database_is_refused_and_left_alone(database: Database, empty_place: str, tmp_path: Path) -> None:
    migrate(database)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerDatabaseError, match=r"has revision '9999', but this version of Cohort knows those up to"):
        open_store(empty_place, blobs=tmp_path / "blobs")
    assert revision_of(database) == "9999"


def test_a_database_of_something_else_is_refused(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("CREATE TABLE customers (id integer)"))
    with pytest.raises(StoreError, match="has tables, but none of a Cohort service"):
        migrate(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == ["customers"]


def test_one_of_several_processes_migrates(empty_place: str) -> None:
    with ExitStack() as opened:
        databases = [opened.enter_context(closing(open_database(empty_place))) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            applied = sorted(threads.map(migrate, databases), key=len)
    assert applied == [(), (), (), known_revisions()]


def test_a_migration_that_is_cut_off_changes_nothing(database: Database) -> None:
    def fail(moment: Moment) -> None:
        if moment is Moment.COMMIT:
            raise KeyboardInterrupt

    failing = Database(database.engine, faults=fail)
    with pytest.raises(KeyboardInterrupt):
        migrate(failing)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    assert migrate(database) == known_revisions()


def test_an_upgrade_from_each_revision_ends_with_the_same_tables(tmp_path: Path) -> None:
    for number, revision in enumerate(known_revisions()):
        with closing(open_database(tmp_path / str(number))) as database:
            migrate(database, up_to=revision)
            migrate(database)
            with database.read() as connection:
                assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
