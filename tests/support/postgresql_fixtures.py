"""Fixtures of the tests that ask a real PostgreSQL; a ``conftest.py`` that imports them has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cohort.store.store import open_store
from tests.support.postgresql_server import PostgresServer, postgresql_binaries

__all__ = ["migrated_database", "postgresql"]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    binaries = postgresql_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's binaries are not installed (Debian: apt-get install postgresql)")
    server = PostgresServer(binaries)
    yield server
    server.close()


@pytest.fixture(scope="session")
def migrated_database(postgresql: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with the tables, of which tests get copies."""
    name = postgresql.new_database()
    open_store(postgresql.url(name), blobs=tmp_path_factory.mktemp("blobs")).close()
    return name
