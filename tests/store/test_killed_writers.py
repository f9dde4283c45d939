"""Writers are killed in the middle, and PostgreSQL too: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cohort.store.store import Store, open_store
from tests.store.killed_writers import Writers
from tests.support.postgresql_server import PostgresServer

# how many of what writers tell between two kills; not a divisor of what one round of a writer tells
STEPS = 23


def _opened(place: str, blobs: Path) -> tuple[Store, Writers]:
    store = open_store(place, blobs=blobs)
    organisation = store.tenants.add_organisation("acme", actor="test")
    project = store.tenants.add_project(organisation.id, "default", actor="test")
    return store, Writers(place, str(blobs), project.id)


def _kill(place: str, blobs: Path, *, times: int, server: PostgresServer | None = None) -> None:
    store, writers = _opened(place, blobs)
    with closing(store):
        _kill_all(store, writers, times=times, server=server)


def _kill_all(store: Store, writers: Writers, *, times: int, server: PostgresServer | None) -> None:
    with writers.running():
        for number in range(times):
            writers.read(STEPS)
            if server is not None and number % 2:
                server.kill()
                server.start()
            else:
                writers.kill()
                writers.start()
        writers.read(STEPS)
    (project,) = store.tenants.projects()
    writers.acknowledged.check(store, project.id)
    assert len(writers.acknowledged.done) >= times
    # bytes without a file, whole or not, are of writers that were killed, and the database knows them
    with store.database.read() as connection:
        known = {row.name for row in connection.exec_driver_sql("SELECT name FROM blobs")}
    assert set(store.blobs.folder.names()) <= known


def test_killed_writers_lose_nothing(place: str, tmp_path: Path) -> None:
    _kill(place, tmp_path / "blobs", times=2)


def test_a_killed_postgresql_loses_nothing(postgresql: PostgresServer, migrated_database: str, tmp_path: Path) -> None:
    place = postgresql.url(postgresql.new_database(template=migrated_database))
    _kill(place, tmp_path / "blobs", times=2, server=postgresql)


@pytest.mark.slow
def test_fifty_kills_lose_nothing(place: str, tmp_path: Path) -> None:
    _kill(place, tmp_path / "blobs", times=50)


@pytest.mark.slow
def test_fifty_kills_of_writers_and_postgresql_lose_nothing(
    postgresql: PostgresServer, migrated_database: str, tmp_path: Path
) -> None:
    place = postgresql.url(postgresql.new_database(template=migrated_database))
    _kill(place, tmp_path / "blobs", times=50, server=postgresql)
