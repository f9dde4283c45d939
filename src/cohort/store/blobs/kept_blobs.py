"""Blobs and their rows: a row names a blob before its first byte is written and until its last one is removed.

So a process that is killed at any moment leaves no bytes that the database does not know, and :func:`collect_blobs`
finds what nothing refers to without listing a bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, delete, exists, insert, select, update

from cohort.store.blobs.blob_folder import BlobFolder, Written
from cohort.store.blobs.blob_rows import abandoned_error, remove_blob_row
from cohort.store.database import Database
from cohort.store.enums import BlobState
from cohort.store.errors import QuotaExceededError, StoreError, TooLargeError
from cohort.store.random_names import RandomSource, new_blob_name
from cohort.store.records import Blob, Project, read_record
from cohort.store.tables import IS_OPEN, blobs, checkpoints, files, jobs, models
from cohort.store.tenants.usage import check_stored_bytes, locked_project, stored_bytes

__all__ = ["KeptBlobs", "collect_blobs"]

_NO_LIMIT = 1 << 62
_ABANDONED_SECONDS = 24 * 3600.0


class KeptBlobs:
    """Writes blobs for projects. A new blob has no owner yet: who writes the owner's row keeps it there.

    That is :meth:`~cohort.store.project_files.ProjectFiles.add`, or a runner's
    :meth:`~cohort.store.jobs.claims.Claims.update` with a checkpoint or a model.
    """

    def __init__(self, database: Database, folder: BlobFolder, source: RandomSource) -> None:
        self._database = database
        self._folder = folder
        self._source = source

    @property
    def folder(self) -> BlobFolder:
        """Where the bytes are."""
        return self._folder

    def write(
        self, project_id: str, chunks: Iterable[bytes], *, limit: int = _NO_LIMIT, asks_quota: bool = True
    ) -> Blob:
        """Write a stream as a new blob of a project.

        Raises:
            TooLargeError: there are more than ``limit`` bytes.
            QuotaExceededError: the project may not store so much; the stream is read no further than it may.
            StorageFull: there is no room.
            StoreUnavailable: the database or the blobs cannot be reached.
        """
        name, project, used = self._begin(project_id, is_checked=asks_quota)
        most = project.max_stored_bytes if asks_quota else None
        left = _NO_LIMIT if most is None else most - used
        try:
            with self._given_up(name):
                written = self._folder.write(name, chunks, limit=min(limit, left))
        except TooLargeError as error:
            if limit <= left or most is None:
                raise
            raise QuotaExceededError("max_stored_bytes", limit=most, used=used, wanted=left + 1) from error
        return self._complete(name, written)

    def write_folder(self, project_id: str, source: Path) -> Blob:
        """Write a folder (an adapter) as a new blob of a project; the quota is not asked, for the work is done."""
        name, _, _ = self._begin(project_id, is_checked=False)
        with self._given_up(name):
            written = self._folder.write_folder(name, source)
        return self._complete(name, written)

    def waits_for_owner(self, name: str) -> bool:
        """Return whether a blob is complete, without an owner, and not taken for abandoned."""
        statement = select(blobs.c.sha256).where(blobs.c.name == name, blobs.c.state == BlobState.WRITING)
        with self._database.read() as connection:
            return connection.scalar(statement) is not None

    def kept_of(self, names: Collection[str]) -> set[str]:
        """Return those of ``names`` that a file, model or checkpoint still has."""
        statement = select(blobs.c.name).where(blobs.c.name.in_(names), blobs.c.state == BlobState.KEPT)
        with self._database.read() as connection:
            return set(connection.scalars(statement))

    def _begin(self, project_id: str, *, is_checked: bool) -> tuple[str, Project, int]:
        name = new_blob_name(self._source)
        with self._database.write() as connection:
            project = locked_project(connection, project_id)
            if is_checked:
                # no room for one byte more: said before the client sends gigabytes
                check_stored_bytes(connection, project, wanted=1)
            used = 0 if project.max_stored_bytes is None else stored_bytes(connection, project_id)
            now = self._database.now(connection)
            connection.execute(
                insert(blobs).values(
                    name=name, project_id=project_id, state=BlobState.WRITING, bytes=0, created_at=now, changed_at=now
                )
            )
        return name, project, used

    @contextmanager
    def _given_up(self, name: str) -> Iterator[None]:
        """Let the next collection have the row of a blob whose writing fails: each new attempt has a row of its own."""
        try:
            yield
        except Exception:
            # where the database is away as well, it is collected as abandoned
            with suppress(StoreError), self._database.write() as connection:
                remove_blob_row(connection, name, now=self._database.now(connection))
            raise

    def _complete(self, name: str, written: Written) -> Blob:
        with self._database.write() as connection:
            now = self._database.now(connection)
            values = {"bytes": written.bytes, "sha256": written.sha256, "changed_at": now}
            own = (blobs.c.name == name, blobs.c.state == BlobState.WRITING)
            if connection.execute(update(blobs).where(*own).values(**values)).rowcount:
                return read_record(Blob, connection.execute(select(blobs).where(blobs.c.name == name)).one())
        # as of a machine that was suspended for a day: what was written has no row any more
        self._folder.remove(name)
        raise abandoned_error(name)


def collect_blobs(
    database: Database, folder: BlobFolder, *, abandoned_seconds: float = _ABANDONED_SECONDS, limit: int = 1000
) -> int:
    """Remove blobs that nothing refers to, and return how many there were; call it from time to time.

    These are blobs of deleted and expired files, models and checkpoints, and those whose writer was killed: without an
    owner for ``abandoned_seconds``. A file that an open job was created with stays until the job has ended.

    Args:
        limit: Most blobs of one call, so that it ends soon.
    """
    with database.write() as connection:
        _release(connection, now=database.now(connection), abandoned_seconds=abandoned_seconds, limit=limit)
        statement = select(blobs.c.name).where(blobs.c.state == BlobState.REMOVED)
        names = list(connection.scalars(statement.order_by(blobs.c.changed_at).limit(limit)))
    for name in names:
        # first the bytes: killed in between, the row is still there and the next collection goes on
        folder.remove(name)
        with database.write() as connection:
            for table in (files, checkpoints, models):
                connection.execute(update(table).where(table.c.blob == name).values(blob=None))
            connection.execute(delete(blobs).where(blobs.c.name == name))
    return len(names)


def _release(connection: Connection, *, now: float, abandoned_seconds: float, limit: int) -> None:
    """Mark the blobs that nothing refers to as removed."""
    expired = update(files).where(files.c.expires_at <= now, files.c.deleted_at.is_(None))
    connection.execute(expired.values(deleted_at=now))
    is_used = exists().where(
        jobs.c.project_id == files.c.project_id,
        IS_OPEN,
        (jobs.c.training_file == files.c.id) | (jobs.c.validation_file == files.c.id),
    )
    over = select(files.c.blob).where(files.c.blob.is_not(None), files.c.deleted_at.is_not(None), ~is_used)
    abandoned = select(blobs.c.name).where(
        blobs.c.state == BlobState.WRITING, blobs.c.changed_at < now - abandoned_seconds
    )
    for statement in (over.limit(limit), abandoned.limit(limit)):
        gone = update(blobs).where(blobs.c.name.in_(statement), blobs.c.state != BlobState.REMOVED)
        connection.execute(gone.values(state=BlobState.REMOVED, changed_at=now))
