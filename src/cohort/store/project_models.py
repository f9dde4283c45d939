"""The finished adapters and checkpoints of one project, by the names under which they are served."""

from __future__ import annotations

from cohort.store.blobs.blob_rows import remove_blob_row
from cohort.store.pages import Order, Page, read_page
from cohort.store.records import Checkpoint, Model, read_record
from cohort.store.scope import Scope
from cohort.store.storable import is_storable_text
from cohort.store.tables import checkpoints, models

__all__ = ["ProjectModels"]


class ProjectModels:
    """Lists and deletes the adapters of one project."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._database = scope.database

    def get(self, model_id: str) -> Model:
        """Return a finished adapter.

        Raises:
            UnknownIdError: the project has no such model.
        """
        with self._database.read() as connection:
            return read_record(Model, self._scope.row(connection, models, "model", model_id))

    def checkpoint(self, model_id: str) -> Checkpoint | None:
        """Return the checkpoint that is served under this name; None if the project has none."""
        if not is_storable_text(model_id):
            return None
        statement = self._scope.select(checkpoints).where(
            checkpoints.c.model == model_id, checkpoints.c.deleted_at.is_(None)
        )
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        return None if row is None else read_record(Checkpoint, row)

    def list(self, *, after: str | None = None, limit: int = 1000, order: Order = Order.DESC) -> Page[Model]:
        """Return a page of the project's finished adapters; ``after`` is a name.

        Raises:
            UnknownIdError: ``after`` is no model of the project.
        """
        with self._database.read() as connection:
            statement = self._scope.select(models).where(models.c.deleted_at.is_(None))
            since = None if after is None else self._scope.row(connection, models, "model", after).position
            return read_page(
                connection,
                statement,
                by=models.c.position,
                after=since,
                limit=limit,
                order=order,
                record=Model,
            )

    def delete(self, model_id: str) -> None:
        """Delete a finished adapter or a checkpoint, by the name under which it is served; the other one stays.

        Its bytes count no more, and go with the next collection of blobs.

        Raises:
            UnknownIdError: the project has no such model.
        """
        checkpoint = self.checkpoint(model_id)
        table, name = (models, model_id) if checkpoint is None else (checkpoints, checkpoint.id)
        with self._database.write() as connection:
            row = self._scope.row(connection, table, "model", name)
            now = self._database.now(connection)
            connection.execute(self._scope.update(table).where(table.c.id == name).values(deleted_at=now))
            remove_blob_row(connection, row.blob, now=now)
