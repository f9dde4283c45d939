"""A real PostgreSQL for the tests of services on one."""

from __future__ import annotations

from tests.support.postgresql_fixtures import migrated_database, postgresql

__all__ = ["migrated_database", "postgresql"]
