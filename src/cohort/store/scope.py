"""The one way to a tenant's rows: statements that hold the project's id, whatever else they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Delete, Row, Select, Table, Update, delete, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from cohort.store.database import Database
from cohort.store.errors import UnknownIdError
from cohort.store.random_names import RandomSource
from cohort.store.storable import is_storable_text

__all__ = ["Scope"]


class Scope:
    """A project's part of the database: another project's rows are not there.

    What a tenant sees or changes is built from these statements only, which a test checks.
    """

    def __init__(self, database: Database, source: RandomSource, project_id: str) -> None:
        self.database = database
        self.source = source
        self.project_id = project_id

    def select(self, table: Table, *columns: ColumnElement[Any]) -> Select[Any]:
        return select(*(columns or (table,))).where(table.c.project_id == self.project_id)

    def update(self, table: Table) -> Update:
        return update(table).where(table.c.project_id == self.project_id)

    def delete(self, table: Table) -> Delete:
        return delete(table).where(table.c.project_id == self.project_id)

    def insert(self, connection: Connection, table: Table, *rows: Mapping[str, object]) -> None:
        connection.execute(insert(table), [{**row, "project_id": self.project_id} for row in rows])

    def row(self, connection: Connection, table: Table, kind: str, id: str) -> Row[Any]:  # noqa: A002
        """Return the row with an id.

        Raises:
            UnknownIdError: the project has none; ``kind`` is what it calls it.
        """
        # an id that no database can be asked for is that of nothing
        if not is_storable_text(id):
            raise UnknownIdError(kind, id)
        statement = self.select(table).where(table.c.id == id)
        if "deleted_at" in table.c:
            statement = statement.where(table.c.deleted_at.is_(None))
        row = connection.execute(statement).one_or_none()
        if row is None:
            raise UnknownIdError(kind, id)
        return row
