"""The files of one project: uploaded by its clients, or left by its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import or_

from cohort.store.blobs.blob_rows import keep_blob, remove_blob_row
from cohort.store.blobs.kept_blobs import KeptBlobs
from cohort.store.enums import FileStatus
from cohort.store.errors import UnknownIdError
from cohort.store.pages import Order, Page, read_page
from cohort.store.random_names import new_id
from cohort.store.records import StoredFile, read_record
from cohort.store.scope import Scope
from cohort.store.storable import check_storable
from cohort.store.tables import IS_OPEN, files, jobs
from cohort.store.tenants.usage import check_stored_bytes, locked_project

__all__ = ["ProjectFiles"]


class ProjectFiles:
    """Adds, lists, reads and deletes the files of one project."""

    def __init__(self, scope: Scope, blobs: KeptBlobs) -> None:
        self._scope = scope
        self._database = scope.database
        self._blobs = blobs

    def add(
        self,
        chunks: Iterable[bytes],
        *,
        filename: str,
        purpose: str,
        max_bytes: int,
        lifetime_seconds: float | None = None,
        status: FileStatus = FileStatus.PROCESSED,
        asks_quota: bool = True,
    ) -> StoredFile:
        """Store a stream as a new file: when this returns, it is on the disk and in the database.

        Args:
            filename: What the client calls it; only ever shown.
            max_bytes: Most bytes.
            lifetime_seconds: After how long it expires.
            asks_quota: False for what a job leaves, whose work is done.

        Raises:
            TooLargeError: there are more than ``max_bytes``.
            QuotaExceededError: the project may not store so much.
            InputError: the name holds characters that no database can hold.
            StorageFull: there is no room.
            StoreUnavailable: the database or the blobs cannot be reached.
        """
        check_storable({"filename": filename, "purpose": purpose})
        blob = self._blobs.write(self._scope.project_id, chunks, limit=max_bytes, asks_quota=asks_quota)
        file_id = new_id(self._scope.source, "file-")
        with self._database.write() as connection:
            project = locked_project(connection, self._scope.project_id)
            if asks_quota:
                # asked again: other uploads may have ended in the meantime
                check_stored_bytes(connection, project, wanted=blob.bytes)
            now = self._database.now(connection)
            keep_blob(connection, blob.name, now=now)
            self._scope.insert(
                connection,
                files,
                {
                    "id": file_id,
                    "filename": filename,
                    "purpose": purpose,
                    "status": status,
                    "bytes": blob.bytes,
                    "sha256": blob.sha256,
                    "blob": blob.name,
                    "created_at": now,
                    "expires_at": None if lifetime_seconds is None else now + lifetime_seconds,
                },
            )
            return read_record(StoredFile, self._scope.row(connection, files, "file", file_id))

    def get(self, file_id: str) -> StoredFile:
        """Return a file.

        Raises:
            UnknownIdError: the project has no such file, or it has expired.
        """
        with self._database.read() as connection:
            found = read_record(StoredFile, self._scope.row(connection, files, "file", file_id))
            if found.expires_at is not None and found.expires_at <= self._database.now(connection):
                raise UnknownIdError("file", file_id)
            return found

    def list(
        self, *, after: str | None = None, limit: int = 10_000, order: Order = Order.DESC, purpose: str | None = None
    ) -> Page[StoredFile]:
        """Return a page of the project's files.

        Raises:
            UnknownIdError: ``after`` is no file of the project.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
            statement = self._scope.select(files).where(
                files.c.deleted_at.is_(None), or_(files.c.expires_at.is_(None), files.c.expires_at > now)
            )
            if purpose is not None:
                statement = statement.where(files.c.purpose == purpose)
            since = None if after is None else self._scope.row(connection, files, "file", after).position
            return read_page(
                connection,
                statement,
                by=files.c.position,
                after=since,
                limit=limit,
                order=order,
                record=StoredFile,
            )

    def content(self, file_id: str) -> Iterator[bytes]:
        """Yield the bytes of a file; that there is none is raised before the first.

        Raises:
            UnknownIdError: the project has no such file.
            StoreUnavailable: the blobs cannot be reached.
        """
        return self._content_of(self.get(file_id))

    def content_for_job(self, file_id: str) -> Iterator[bytes]:
        """Yield the bytes of a file that a job was created with, also if it was deleted meanwhile."""
        statement = self._scope.select(files).where(files.c.id == file_id, files.c.blob.is_not(None))
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        if row is None:
            raise UnknownIdError("file", file_id)
        return self._content_of(read_record(StoredFile, row))

    def _content_of(self, file: StoredFile) -> Iterator[bytes]:
        if file.blob is None:
            raise UnknownIdError("file", file.id)
        return self._blobs.folder.read(file.blob)

    def delete(self, file_id: str) -> None:
        """Delete a file. A job that was created with it can still read it.

        Raises:
            UnknownIdError: the project has no such file.
        """
        with self._database.write() as connection:
            row = self._scope.row(connection, files, "file", file_id)
            now = self._database.now(connection)
            connection.execute(self._scope.update(files).where(files.c.id == file_id).values(deleted_at=now))
            is_used = self._scope.select(jobs, jobs.c.id).where(
                IS_OPEN, or_(jobs.c.training_file == file_id, jobs.c.validation_file == file_id)
            )
            # its bytes count until then; the collection removes it when the job has ended
            if connection.execute(is_used.limit(1)).first() is None:
                remove_blob_row(connection, row.blob, now=now)

    def set_status(self, file_id: str, status: FileStatus, *, details: str | None = None) -> None:
        """Say what came out of the check of a file."""
        with self._database.write() as connection:
            self._scope.row(connection, files, "file", file_id)
            changed = self._scope.update(files).where(files.c.id == file_id)
            connection.execute(changed.values(status=status, status_details=details))
