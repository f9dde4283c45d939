"""A store on each of the databases: SQLite in a folder, and a real PostgreSQL where its binaries are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cohort.core.clock import Clock, ManualClock
from cohort.store.random_names import SeededSource
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store, open_store
from tests.support.postgresql_fixtures import migrated_database, postgresql
from tests.support.postgresql_server import PostgresServer

__all__ = ["migrated_database", "postgresql"]

OpenStore = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of a test is: a folder or a URL."""
    if request.param == "sqlite":
        return str(tmp_path / "service")
    postgresql: PostgresServer = request.getfixturevalue("postgresql")
    template: str = request.getfixturevalue("migrated_database")
    return postgresql.url(postgresql.new_database(template=template))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place whose database has no tables yet."""
    if request.param == "sqlite":
        return str(tmp_path / "service")
    postgresql: PostgresServer = request.getfixturevalue("postgresql")
    return postgresql.url(postgresql.new_database())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(place: str, clock: Clock, tmp_path: Path) -> Iterator[Store]:
    """A store with a clock that the test moves."""
    opened = open_store(place, blobs=tmp_path / "blobs", clock=clock, source=SeededSource(7))
    yield opened
    opened.close()


@pytest.fixture
def project(store: Store) -> Project:
    organisation = store.tenants.add_organisation("acme", actor="test")
    return store.tenants.add_project(organisation.id, "default", actor="test")


@pytest.fixture
def other_project(store: Store, project: Project) -> Project:
    return store.tenants.add_project(project.organisation_id, "other", actor="test")


@pytest.fixture
def own(store: Store, project: Project) -> ProjectStore:
    return store.project(project.id)
