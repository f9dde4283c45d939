"""Tenants and keys of a service that may be running, without its blobs: for commands of administrators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.store.database import Database, open_database, sqlite_file
from cohort.store.migrating import migrate
from cohort.store.random_names import SystemSource
from cohort.store.tenants.keys import Keys
from cohort.store.tenants.tenants import Tenants

__all__ = ["Accounts", "open_accounts"]


class Accounts:
    """Who a service is for, and what opens it."""

    def __init__(self, database: Database) -> None:
        source = SystemSource()
        self.database = database
        self.tenants = Tenants(database, source)
        self.keys = Keys(database, source)


@contextmanager
def open_accounts(place: str | Path, *, creates: bool = False) -> Iterator[Accounts]:
    """Open the tenants of the service in a folder or at a database's URL.

    Args:
        creates: Whether a folder without a service becomes one; otherwise that is an error.

    Raises:
        InputError: there is no service, or the URL is none.
        StoreError: the database cannot be used.
    """
    file = sqlite_file(place)
    if file is not None and not creates and not file.exists():
        raise InputError(
            Problem(
                where=str(place),
                found=f"no service ({file.name} is not there)",
                allowed="the folder of a service",
                hint="Give --folder or --database, or begin with `cohort service` or `cohort tenants add`.",
            )
        )
    database = open_database(place)
    try:
        migrate(database)
        yield Accounts(database)
    finally:
        database.close()
