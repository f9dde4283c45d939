"""The rows of blobs, within the transactions of those who own them."""

from __future__ import annotations

from sqlalchemy import Connection, update

from cohort.store.enums import BlobState
from cohort.store.errors import StoreUnavailable
from cohort.store.tables import blobs

__all__ = ["abandoned_error", "keep_blob", "remove_blob_row"]


def keep_blob(connection: Connection, name: str | None, *, now: float) -> None:
    """Keep a blob that is complete, in the transaction that writes the row of its owner.

    Raises:
        StoreUnavailable: it was taken for abandoned and is gone; its bytes must be written again.
    """
    if name is None:
        return
    kept = update(blobs).where(blobs.c.name == name, blobs.c.state == BlobState.WRITING)
    if connection.execute(kept.values(state=BlobState.KEPT, changed_at=now)).rowcount == 0:
        raise abandoned_error(name)


def abandoned_error(name: str) -> StoreUnavailable:
    """Return the error of a blob that was not kept within a day of its first byte."""
    return StoreUnavailable(f"the blob {name} took so long that it was taken for abandoned; write it again")


def remove_blob_row(connection: Connection, name: str | None, *, now: float) -> None:
    """Let a blob go: its bytes count no more, and the next collection removes them."""
    if name is not None:
        gone = update(blobs).where(blobs.c.name == name)
        connection.execute(gone.values(state=BlobState.REMOVED, changed_at=now))
