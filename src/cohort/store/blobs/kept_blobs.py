"""Blobs and their rows: a row names a blob before its first byte is written and until its last one is removed.

So a process that is killed at any moment leaves no bytes that the database does not know, and :func:`collect_blobs`
finds what nothing refers to without listing a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, delete, exists, insert, select, update

from cohort.store.blobs.blob_folder import BlobFolder, Written
from cohort.store.database import Database
from cohort.store.jobs.transitions import OPEN
from cohort.store.random_names import RandomSource, new_blob_name
from cohort.store.records import Blob, read_record
from cohort.store.tables import blobs, checkpoints, files, jobs, models
from cohort.store.tenants.usage import check_stored_bytes, locked_project
from cohort.store.words import BlobState

__all__ = ["KeptBlobs", "collect_blobs", "remove_blob_row"]

_NO_LIMIT = 1 << 62
# a writer that is alive touches its row more often
_ABANDONED_SECONDS = 6 * 3600.0


class KeptBlobs:
    """Writes blobs for projects."""

    def __init__(self, database: Database, folder: BlobFolder, source: RandomSource) -> None:
        self._database = database
        self._folder = folder
        self._source = source

    @property
    def folder(self) -> BlobFolder:
        """Where the bytes are."""
        return self._folder

    def write(self, project_id: str, chunks: Iterable[bytes], *, limit: int = _NO_LIMIT) -> Blob:
        """Write a stream as a new blob of a project.

        Raises:
            TooLargeError: there are more than ``limit`` bytes.
            QuotaExceededError: the project may not store so much.
            StorageFull: there is no room.
            StoreUnavailable: the database or the blobs cannot be reached.
        """
        name = self._begin(project_id)
        return self._finish(project_id, name, self._folder.write(name, chunks, limit=limit))

    def write_folder(self, project_id: str, source: Path) -> Blob:
        """Write a folder (an adapter) as a new blob of a project; the quota is not asked, for the work is done."""
        name = self._begin(project_id)
        return self._finish(project_id, name, self._folder.write_folder(name, source), is_checked=False)

    def _begin(self, project_id: str) -> str:
        name = new_blob_name(self._source)
        with self._database.write() as connection:
            # no room for one byte more: said before the client sends gigabytes
            check_stored_bytes(connection, locked_project(connection, project_id), wanted=0)
            now = self._database.now(connection)
            connection.execute(
                insert(blobs).values(
                    name=name, project_id=project_id, state=BlobState.WRITING, bytes=0, created_at=now, changed_at=now
                )
            )
        return name

    def _finish(self, project_id: str, name: str, written: Written, *, is_checked: bool = True) -> Blob:
        with self._database.write() as connection:
            if is_checked:
                check_stored_bytes(connection, locked_project(connection, project_id), wanted=written.bytes)
            now = self._database.now(connection)
            values = {"state": BlobState.KEPT, "bytes": written.bytes, "sha256": written.sha256, "changed_at": now}
            connection.execute(update(blobs).where(blobs.c.name == name).values(**values))
            return read_record(Blob, connection.execute(select(blobs).where(blobs.c.name == name)).one())


def remove_blob_row(connection: Connection, name: str | None, *, now: float) -> None:
    """Let a blob go: its bytes count no more, and the next collection removes them."""
    if name is not None:
        gone = update(blobs).where(blobs.c.name == name)
        connection.execute(gone.values(state=BlobState.REMOVED, changed_at=now))


def collect_blobs(
    database: Database, folder: BlobFolder, *, abandoned_seconds: float = _ABANDONED_SECONDS, limit: int = 1000
) -> int:
    """Remove blobs that nothing refers to, and return how many there were; call it from time to time.

    These are blobs of deleted and expired files, models and checkpoints, and those whose writer was killed: a blob that
    has been ``writing``, or complete without an owner, for ``abandoned_seconds``. A file that an open job was
    created with stays until the job has ended.

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
    is_used = exists().where(
        jobs.c.project_id == files.c.project_id,
        jobs.c.status.in_(sorted(OPEN)),
        (jobs.c.training_file == files.c.id) | (jobs.c.validation_file == files.c.id),
    )
    over = select(files.c.blob).where(files.c.blob.is_not(None), files.c.deleted_at.is_not(None), ~is_used)
    owned = exists().where(files.c.blob == blobs.c.name)
    owned_too = exists().where(checkpoints.c.blob == blobs.c.name) | exists().where(models.c.blob == blobs.c.name)
    before = now - abandoned_seconds
    abandoned = select(blobs.c.name).where(
        blobs.c.state.in_([BlobState.WRITING, BlobState.KEPT]), blobs.c.changed_at < before, ~(owned | owned_too)
    )
    expired = update(files).where(
        files.c.expires_at.is_not(None), files.c.expires_at <= now, files.c.deleted_at.is_(None)
    )
    connection.execute(expired.values(deleted_at=now))
    for statement in (over.limit(limit), abandoned.limit(limit)):
        gone = update(blobs).where(blobs.c.name.in_(statement), blobs.c.state != BlobState.REMOVED)
        connection.execute(gone.values(state=BlobState.REMOVED, changed_at=now))
