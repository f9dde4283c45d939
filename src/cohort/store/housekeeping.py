"""What one of all processes has to do from time to time: remove what is over, and charge for stored bytes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from cohort.store.blobs.blob_folder import BlobFolder
from cohort.store.blobs.kept_blobs import collect_blobs
from cohort.store.database import Database
from cohort.store.enums import BlobState, UsageKind
from cohort.store.named_leases import NamedLease, end_lease, take_lease
from cohort.store.retention import Retention, forget_ended
from cohort.store.tables import blobs
from cohort.store.tenants.usage import add_usage

__all__ = ["Housekeeping", "keep_house"]

_LEASE = "housekeeping"
_LEASE_SECONDS = 600.0
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, kw_only=True)
class Housekeeping:
    """What was done.

    Attributes:
        num_blobs: How many blobs were removed.
        num_jobs: How many jobs were forgotten.
        charged_days: For how long stored bytes were charged.
    """

    num_blobs: int
    num_jobs: int
    charged_days: float


def keep_house(
    database: Database,
    folder: BlobFolder,
    *,
    owner: str,
    every_seconds: float = 3600.0,
    retention: Retention | None = None,
) -> Housekeeping | None:
    """Do what is due; None if another process does it, or did it within ``every_seconds``. Call it from time to time.

    Raises:
        StoreUnavailable: the database or the blobs cannot be reached; what was not done is done the next time.
    """
    lease = take_lease(database, _LEASE, owner, seconds=_LEASE_SECONDS, not_within_seconds=every_seconds)
    if lease is None:
        return None
    num_jobs = 0 if retention is None else forget_ended(database, retention)
    num_blobs = collect_blobs(database, folder)
    return Housekeeping(num_blobs=num_blobs, num_jobs=num_jobs, charged_days=_charge_stored_bytes(database, lease))


def _charge_stored_bytes(database: Database, lease: NamedLease) -> float:
    """Charge each project for the bytes it keeps now, times the days since the last time; return these days."""
    with database.write() as connection:
        now = database.now(connection)
        days = 0.0 if lease.done_at is None else max(0.0, now - lease.done_at) / _DAY_SECONDS
        # with the charge or not at all: no time is charged twice
        end_lease(connection, lease, done_at=now)
        statement = select(blobs.c.project_id, func.sum(blobs.c.bytes).label("bytes"))
        kept = statement.where(blobs.c.state == BlobState.KEPT).group_by(blobs.c.project_id)
        for row in connection.execute(kept.order_by(blobs.c.project_id)).all():
            amounts = {UsageKind.BYTE_DAYS: float(row.bytes) * days}
            add_usage(connection, project_id=row.project_id, seconds=now, amounts=amounts)
    return days
